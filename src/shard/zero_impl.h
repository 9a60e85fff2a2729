// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/require.h"
#include "thinwire/core/error.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/shard/zero_optimizer.h"

namespace thinwire::shard {

/// One way of stepping: the corrected one, or the reference's.
struct ZeroOptimizer::Impl {
  Impl(comm::Communicator& c, const ParameterLayout& l, View p,
       const ZeroOptions& settings);
  virtual ~Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  [[nodiscard]] virtual const ShardLayout& shards() const = 0;
  [[nodiscard]] virtual std::vector<Range> buckets() const = 0;

  // The state of the window has been checked, and arguments too.
  virtual void begin_backward(Backward which) = 0;
  virtual void collect(std::size_t index, ConstView gradient) = 0;
  virtual void end_backward() = 0;
  virtual void cancel_backward() = 0;
  [[nodiscard]] virtual Late late() const { return {}; }
  virtual void reduce_early(View grads, Range range);
  [[nodiscard]] virtual bool reduces_early() const { return false; }

  /// `in.grads` is empty where gradients were collected.
  virtual optim::StepReport step(const optim::StepInput& in) = 0;

  /// This rank's part of an array over its shard: masters, a state of the rule,
  /// or the reduced gradient, which may be anywhere.
  [[nodiscard]] virtual std::vector<float> read(std::size_t parameter,
                                                std::string_view what,
                                                View grads) = 0;
  virtual void write(std::size_t parameter, std::string_view what,
                     std::span<const float> values) = 0;
  virtual void read_masters(ConstView params) = 0;
  virtual void offload_states() = 0;
  virtual void reload_states() = 0;

  virtual void set_learning_rate(std::size_t group, double rate) = 0;
  [[nodiscard]] virtual double learning_rate(std::size_t group) const = 0;
  virtual void save(StateDict& state) const = 0;
  /// Throws Error(kCorruptCheckpoint) where load() could not load; local.
  virtual void require_fits(const StateDict& state) const = 0;
  /// Of a state that fits on every rank.
  virtual void load(const StateDict& state) = 0;

  /// What has been reduced early is in memory that may not be exchanged.
  void require_same_array(View grads) const;
  [[nodiscard]] bool scales() const noexcept {
    return options.dtype == DType::kFloat16;
  }
  [[nodiscard]] double loss_scale() const noexcept {
    return scales() ? scaler.scale() : 1;
  }

  comm::Communicator& comm;
  const ParameterLayout layout;
  const View params;
  const ZeroOptions options;
  precision::LossScaler scaler;
  ThreadPool pool;
  std::int64_t steps = 0;
  std::int64_t skipped = 0;

  // ---- the window: what has happened since the last step
  bool has_collected = false;  // at least one backward has begun
  bool in_backward = false;
  bool is_complete = false;     // no other backward may come
  std::vector<bool> collected;  // in this backward, per parameter
  View early;                   // gradients of which some are reduced already
  bool has_states = true;       // they are not offloaded
};

/// DeepSpeed's DeepSpeedZeroOptimizer around torch's Adam, operation by
/// operation. Collective.
[[nodiscard]] std::unique_ptr<ZeroOptimizer::Impl> make_reference_zero(
    comm::Communicator& comm, const ParameterLayout& layout,
    const MakeRule& make_rule, View params, const ZeroOptions& options,
    ConstView initial);
[[nodiscard]] std::unique_ptr<ZeroOptimizer::Impl> make_corrected_zero(
    comm::Communicator& comm, const ParameterLayout& layout,
    const MakeRule& make_rule, View params, const ZeroOptions& options,
    ConstView initial);

}  // namespace thinwire::shard
