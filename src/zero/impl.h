// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/require.h"
#include "exchange/gradient_window.h"
#include "optim/saved_state.h"
#include "precision/loss_scale.h"
#include "thinwire/core/error.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/zero/zero_optimizer.h"
#include "zero/checks.h"
#include "zero/shard_group.h"

namespace thinwire::zero {

/// A bucket of a window, and whose it is.
struct BucketOfGroup {
  ShardGroup* group = nullptr;
  std::size_t number = 0;  ///< Among the group's.
  Range range{};
};

/// Stage 1: buckets of an array of all gradients, reduced before step().
class EarlyBuckets final : public optim::EarlyGradients {
 public:
  explicit EarlyBuckets(ZeroOptimizer::Impl& impl) : impl_(impl) {}
  [[nodiscard]] bool reduces() const noexcept override { return true; }
  void reduce(View grads, Range range) override;
  [[nodiscard]] std::vector<Range> buckets() const override;

 private:
  ZeroOptimizer::Impl& impl_;
};

/// Where the gradients of its window go: stage 1 keeps them whole and reduces
/// each bucket in place, stage 2 releases a bucket once it is reduced.
struct ZeroOptimizer::Impl final : exchange::GradientSink {
  Impl(comm::Communicator& c, const ParameterLayout& l,
       const MakeRule& make_rule, View p, const ZeroOptions& settings,
       ConstView initial);

  // ---- gradients until the step: gradients.cpp
  void begin_backward(Backward which);
  void store(const exchange::GradientPart& part) override;
  bool send(std::size_t bucket) override;
  void cancel_backward();
  /// What has been reduced early is in memory that may not be exchanged.
  void require_same_array(View grads) const;

  // ---- the step: step.cpp
  /// `in.grads` is empty where gradients were collected.
  optim::StepReport step(const optim::StepInput& in);

  // ---- whole values and states: whole_values.cpp
  /// An array over this rank's shard: masters, a state of the rule, or the
  /// reduced gradient, which may be anywhere. Collective.
  [[nodiscard]] std::vector<float> read(std::size_t parameter,
                                        std::string_view what, View grads);
  void write(std::size_t parameter, std::string_view what,
             std::span<const float> values);
  /// What experts keep goes on in the dense parameters' arrays, unless few bits
  /// leave something over in each group. fp32 parameters have nothing of that.
  [[nodiscard]] bool joins_states() const {
    return options.wire.is_exact() || params.is_joined();
  }
  /// A state for each group, of one for all.
  [[nodiscard]] std::vector<StateDict> cut(StateDict state) const;

  comm::Communicator& comm;
  const ParameterLayout layout;
  const View params;
  const ZeroOptions options;
  const ZeroOptions wide_options;  // of fp32 parameters beside 16 bits
  precision::LossScale scale;
  ThreadPool pool;
  optim::StepCounts counts;

  const std::shared_ptr<CopyEngine> copies;
  // Stage 1, one by one: gradients stay whole until the last backward. Groups
  // that are destroyed wait for what is under way from here.
  Buffer sums;
  const std::vector<std::unique_ptr<ShardGroup>> groups;  // the dense one first
  optim::JoinedGroups rules;                              // of all of them
  const std::vector<std::size_t> num_squares;  // per rank, of all its groups
  bool has_states = true;                      // they are not offloaded

  const std::vector<BucketOfGroup> buckets;  // in flat order
  exchange::GradientWindow window;
  EarlyBuckets early;
  View whole;               // stage 1: gradients of which buckets are reduced
  bool has_agreed = false;  // in this window, that they are finite or not

 private:
  [[nodiscard]] std::vector<std::unique_ptr<ShardGroup>> make_groups(
      const MakeRule& make_rule, ConstView initial);
  /// Collective.
  [[nodiscard]] std::vector<std::size_t> count_squares() const;

  /// Stage 2: each backward's gradients leave as they come. In few bits those
  /// of a window leave together, once each host has added up its own.
  [[nodiscard]] bool sends_every_backward() const noexcept {
    return options.wire.bits_up == 0 ||
           std::ranges::any_of(groups, [](const auto& group) {
             return !group->comm().hosts().is_flat();
           });
  }
  void begin_backward(Backward which, DType gradients);
  void require_residuals(Backward which) const;
  void collect_all(ConstView grads);
  [[nodiscard]] std::int64_t first_nonfinite_gradient();
  /// Collective, where gradients wait for it.
  void agree_on_finite();
  /// Collective: reduces what is left, and waits.
  void finish(View grads);
  void end_window();

  void take_step(const optim::StepInput& in, optim::StepMeter& meter,
                 optim::StepReport& report);
  [[nodiscard]] double norm(double loss_scale, optim::StepMeter& meter);
  [[nodiscard]] std::int64_t first_nonfinite();
  [[nodiscard]] ShardGroup& group_of(std::size_t parameter) const;
};

}  // namespace thinwire::zero
