// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/require.h"
#include "optim/gradient_window.h"
#include "precision/loss_scale.h"
#include "shard/bucket_schedule.h"
#include "shard/parameter_values.h"
#include "shard/shard_group.h"
#include "thinwire/core/error.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/shard/zero_optimizer.h"

namespace thinwire::shard {

struct ZeroOptimizer::Impl {
  Impl(comm::Communicator& c, const ParameterLayout& l,
       const MakeRule& make_rule, View p, const ZeroOptions& settings,
       ConstView initial);

  // ---- gradients until the step: zero_gradients.cpp
  [[nodiscard]] std::vector<Range> buckets() const;
  void begin_backward(Backward which);
  void collect(std::size_t index, ConstView gradient);
  void collect_all(View grads);
  void end_backward();
  void cancel_backward();
  [[nodiscard]] Late late() const;
  void make_sums();
  void reduce_early(View grads, Range range);
  /// What has been reduced early is in memory that may not be exchanged.
  void require_same_array(View grads) const;
  /// Collective: reduces what is left, and waits.
  void finish(View grads);
  void end_window();

  // ---- the step: zero_step.cpp
  /// `in.grads` is empty where gradients were collected.
  optim::StepReport step(const optim::StepInput& in);
  void take_step(const optim::StepInput& in, optim::StepMeter& meter,
                 optim::StepReport& report);
  [[nodiscard]] double norm(double loss_scale, optim::StepMeter& meter);
  [[nodiscard]] std::int64_t first_nonfinite();

  // ---- whole values and states: zero_whole_values.cpp
  [[nodiscard]] ShardGroup& group_of(std::size_t parameter) const;
  /// An array over this rank's shard: masters, a state of the rule, or the
  /// reduced gradient, which may be anywhere. Collective.
  [[nodiscard]] std::vector<float> read(std::size_t parameter,
                                        std::string_view what, View grads);
  void write(std::size_t parameter, std::string_view what,
             std::span<const float> values);

  comm::Communicator& comm;
  const ParameterLayout layout;
  const View params;
  const ZeroOptions options;
  precision::LossScale scale;
  ThreadPool pool;
  StepCounts counts;

  std::shared_ptr<CopyEngine> copies;
  // Stage 1, one by one: gradients stay whole until the last backward. Groups
  // that are destroyed wait for what is under way from here.
  Buffer sums;
  std::vector<std::unique_ptr<ShardGroup>> groups;  // the dense one first
  std::vector<std::size_t> num_squares;  // per rank, of all its groups
  bool has_states = true;                // they are not offloaded

  // ---- the window: what has happened since the last step
  optim::GradientWindow window;
  View early;  // gradients of which some are reduced already
  BucketSchedule schedule;
  Late late_whole;  // of stage 1
  bool is_finished = false;
};

}  // namespace thinwire::shard
