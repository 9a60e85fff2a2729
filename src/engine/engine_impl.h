// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/require.h"
#include "engine/gradient_marks.h"
#include "engine/learning_rates.h"
#include "engine/make_optimizer.h"
#include "shard/bucket_schedule.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/core/memory.h"
#include "thinwire/engine/engine.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::engine {

struct Engine::Impl {
  Impl(comm::Communicator& c, const ParameterLayout& l,
       const config::Config& settings, View p, View g)
      : comm(c),
        layout(l),
        config(settings),
        params(p),
        grads(g),
        accumulation_steps(settings.batch(c.size()).accumulation_steps),
        keeps(keeps_gradients(settings, c.size())),
        rates(settings.schedule),
        marks(layout),
        buckets(layout, {}) {}

  comm::Communicator& comm;
  const ParameterLayout layout;
  const config::Config config;
  const View params;
  const View grads;
  const std::int64_t accumulation_steps;
  const bool keeps;  // gradients are in `grads`; else handed over one by one
  LearningRates rates;
  std::int64_t steps = 0;

  // ---- the window: what has happened since the last step
  std::int64_t backwards = 0;
  std::optional<bool> boundary;  // set by the caller
  bool complete = false;         // the last backward was its last one
  bool in_backward = false;
  bool in_evaluation = false;
  bool reduces = false;   // buckets of this backward leave as they fill
  bool has_sent = false;  // one has left
  double waited = 0;      // seconds, for what has left, in backward
  GradientMarks marks;    // of what is the caller's to leave alone until step()
  Buffer sums;            // fp32, of 16-bit gradients; made when needed
  bool sums_count = false;
  std::vector<bool> used;  // parameters that have had a gradient
  Buffer travelling;       // gradients in the dtype of the wire, where that is
                           // another one
  shard::BucketSchedule buckets;
  EngineReport report;
  comm::Counters counters;  // at the window's first backward
  std::chrono::steady_clock::time_point backward_began;

  // Goes first, and waits for what it has under way in the memory above.
  MadeOptimizer made;

  [[nodiscard]] optim::Optimizer& optimizer() const { return *made.optimizer; }
  [[nodiscard]] double loss_scale() const {
    if (made.zero != nullptr) return made.zero->loss_scale();
    return made.mixed == nullptr ? 1 : made.mixed->loss_scale();
  }
  [[nodiscard]] bool is_managed() const {
    return config.managed_gradient_accumulation;
  }
  // Before a window: of its first backward.
  [[nodiscard]] bool is_boundary() const {
    if (complete) return true;
    if (boundary) return *boundary;
    return !is_managed() || (backwards == 0 && accumulation_steps == 1);
  }

  // ---- gradients on their way
  [[nodiscard]] View gathered() { return sums_count ? sums.view() : grads; }
  [[nodiscard]] DType wire_dtype() const {
    return config.communication_dtype.value_or(config.precision.dtype);
  }
  // Values of 16 bits are added in fp32 and rounded once, whatever the wire;
  // the reference's wrapper takes no others.
  [[nodiscard]] bool is_converted() {
    const DType dtype = gathered().dtype();
    if (wire_dtype() == dtype || dtype != DType::kFloat32) return false;
    if (made.zero != nullptr) return false;  // converts bucket by bucket
    const bool travels =
        comm.size() > 1 && optimizer().phase() == optim::Phase::kExact;
    return travels || (config.semantics == optim::Semantics::kDeepSpeed &&
                       made.mixed != nullptr);
  }
  [[nodiscard]] View to_send(Range range) {
    if (!is_converted()) return gathered();
    const MemoryScope scope(MemoryKind::kBuckets);
    if (travelling.empty()) travelling = Buffer(layout.size(), wire_dtype());
    kernels::convert(gathered().subview(range.offset, range.size),
                     travelling.view().subview(range.offset, range.size));
    return travelling.view();
  }
  void send(Range range) {
    optimizer().reduce_early(to_send(range), range);
    has_sent = true;
  }

  // Runs what exchanges with other ranks. One that makes fewer calls, or
  // others, has most often had fewer batches: the error says so.
  template <class F>
  auto exchange(F&& body) {
    try {
      return body();
    } catch (const Error& error) {
      explain(error);
      throw;
    }
  }
  void explain(const Error& error) const;

  void begin_backward();
  void cancel_backward(std::string_view reason);
  void gradient_ready(std::size_t index, ConstView gradient);
  void end_backward();
  void collect(std::size_t index, ConstView gradient);
  void finish_sent();
  void require_untouched();
  [[nodiscard]] ConstView own_gradients() const {
    return keeps ? ConstView(grads) : ConstView();
  }
  void require_all_used() const;
  void begin_window();
  [[nodiscard]] EngineReport step();
  [[nodiscard]] double mean(double value);
};

}  // namespace thinwire::engine
