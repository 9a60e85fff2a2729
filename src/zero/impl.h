// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/require.h"
#include "optim/saved_state.h"
#include "precision/loss_scale.h"
#include "thinwire/core/error.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/exchange/gradient_window.h"
#include "thinwire/zero/zero_optimizer.h"
#include "zero/checks.h"
#include "zero/shard_group.h"

namespace thinwire::zero {

/// A bucket of the window and the group that reduces it.
struct BucketOfGroup {
  ShardGroup* group = nullptr;
  std::size_t number = 0;  ///< Index among the group's buckets.
  Range range{};
};

/// Early work of stage 1: reduces buckets of an array of all gradients.
class EarlyBuckets final : public optim::EarlyGradients {
 public:
  explicit EarlyBuckets(ZeroOptimizer::Impl& impl) : impl_(impl) {}
  [[nodiscard]] bool reduces() const noexcept override { return true; }
  void reduce(View grads, Range range) override;
  [[nodiscard]] std::vector<Range> buckets() const override;

 private:
  ZeroOptimizer::Impl& impl_;
};

/// Receives the gradients of its window. Stage 1 keeps all gradients and
/// reduces each bucket in place, while stage 2 releases a bucket after its
/// reduction.
struct ZeroOptimizer::Impl final : exchange::GradientSink, WholeValues {
  Impl(comm::Communicator& c, const ParameterLayout& l,
       const MakeRule& make_rule, View p, const ZeroOptions& settings,
       ConstView initial);

  // ---- gradients until the step: gradients.cpp
  bool begin(exchange::Backward which) override;
  void check(std::size_t parameter, ConstView gradient) const override;
  void store(const exchange::GradientPart& part) override;
  bool send(std::size_t bucket) override;
  void clear() override;
  /// Throws Error(kInvalidArgument) if gradients have been reduced early in
  /// another array.
  void require_same_array(View grads) const;

  // ---- the step: step.cpp
  /// Runs a step. `in.grads` is empty if gradients were collected.
  optim::StepReport step(const optim::StepInput& in);

  // ---- whole values and states: state.cpp
  /// Returns whether the arrays of all groups are saved as one. They are not if
  /// each group has residuals of low-bit exchanges, because fp32 parameters
  /// have none.
  [[nodiscard]] bool joins_states() const {
    return options.wire.is_exact() || params.is_joined();
  }
  /// Cuts a state of all groups into one per group.
  [[nodiscard]] std::vector<StateDict> cut(StateDict state) const;

  comm::Communicator& comm;
  const ParameterLayout layout;
  const View params;
  const ZeroOptions options;
  const ZeroOptions wide_options;  // for fp32 parameters in a 16-bit model
  precision::LossScale scale;
  ThreadPool pool;
  optim::StepCounts counts;

  // Gradients of stage 1 that were collected one by one. Declared before
  // `groups`, whose destructors wait for collectives that read this buffer.
  Buffer sums;
  const std::vector<std::unique_ptr<ShardGroup>> groups;  // dense group first
  optim::JoinedGroups rules;                              // of all groups
  const std::vector<std::size_t> num_squares;  // per rank, of all its groups

  const std::vector<BucketOfGroup> buckets;  // in flat order
  exchange::GradientWindow window;
  EarlyBuckets early;
  View whole;  // stage 1: gradients whose buckets are being reduced
  DType arriving = options.dtype;  // dtype of the gradients of this window
  bool has_agreed = false;         // agree_on_finite() has run in it

 private:
  [[nodiscard]] std::vector<std::unique_ptr<ShardGroup>> make_groups(
      const MakeRule& make_rule, ConstView initial);
  /// Returns the number of squares that each rank sends. Collective.
  [[nodiscard]] std::vector<std::size_t> count_squares() const;

  /// Returns whether stage 2 sends the gradients of every backward. Low-bit
  /// gradients of flat ranks are sent only once per window.
  [[nodiscard]] bool sends_every_backward() const noexcept {
    return options.wire.bits_up == 0 ||
           std::ranges::any_of(groups, [](const auto& group) {
             return !group->comm().hosts().is_flat();
           });
  }
  void require_residuals(exchange::Backward which) const;
  [[nodiscard]] std::int64_t first_nonfinite_gradient();
  /// If low-bit gradients wait for it, agrees with all ranks on whether
  /// gradients are finite. Collective.
  void agree_on_finite();
  /// Reduces the buckets that have not been sent and waits for all. Collective.
  void finish(View grads);

  void take_step(const optim::StepInput& in, optim::StepMeter& meter,
                 optim::StepReport& report);
  [[nodiscard]] double norm(double loss_scale, std::span<const Range> uncounted,
                            optim::StepMeter& meter);
  [[nodiscard]] std::int64_t first_nonfinite();
  [[nodiscard]] ShardGroup& group_of(std::size_t parameter) const;
  [[nodiscard]] std::vector<float> read(std::size_t parameter,
                                        std::string_view what,
                                        View grads) override;
  void write(std::size_t parameter, std::string_view what,
             std::span<const float> values) override;
};

}  // namespace thinwire::zero
