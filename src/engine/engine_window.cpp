// SPDX-License-Identifier: Apache-2.0
// One window of accumulation: backwards, gradients on their way, the step.
#include <fmt/format.h>

#include "core/set_to_zero.h"
#include "engine/engine_impl.h"
#include "optim/require.h"

namespace thinwire::engine {

using Clock = std::chrono::steady_clock;

void Engine::Impl::begin_window() {
  set_to_zero(grads);
  backwards = 0;
  complete = false;
  reduces = false;
  has_sent = false;
  sums_count = false;
  used.assign(layout.parameters().size(), false);
  report = {};
}

void Engine::Impl::begin_backward() {
  if (in_backward) refuse("begin_backward: inside another backward");
  if (in_evaluation) refuse("begin_backward: inside an evaluation");
  if (complete)
    refuse(fmt::format(
        "begin_backward: the window of {} backward(s) is complete; call step() "
        "first, or set gradient_accumulation_steps or the boundary",
        backwards));
  // From the second backward on, 16-bit gradients are added up in fp32.
  if (keeps && backwards == 1 && grads.dtype() != DType::kFloat32 &&
      config.accumulation_dtype == DType::kFloat32) {
    const MemoryScope scope(MemoryKind::kGradients);
    if (sums.empty()) sums = Buffer::of<float>(layout.size());
    kernels::convert(grads, sums.view());
    set_to_zero(grads);
    sums_count = true;
  }
  if (backwards == 0) counters = comm.counters();
  in_backward = true;
  ++backwards;
  buckets.begin();
  complete = boundary.value_or(is_managed() && backwards >= accumulation_steps);
  reduces = keeps && complete && config.comm.overlap && comm.size() > 1 &&
            optimizer().reduces_early();
  if (!keeps)
    made.zero->begin_backward(
        {.is_first = backwards == 1, .is_last = complete});
  backward_began = Clock::now();
}

void Engine::Impl::collect(std::size_t index, ConstView gradient) {
  if (!keeps) {
    made.zero->collect(index, gradient);
  } else if (sums_count) {
    const Parameter& p = layout.parameters()[index];
    const View own = grads.subview(p.offset, p.size);
    kernels::accumulate(sums.view().subview(p.offset, p.size), own);
    set_to_zero(own);
  }
  buckets.mark_ready(index);
}

void Engine::Impl::gradient_ready(std::size_t index, ConstView gradient) {
  optim::require(index < layout.parameters().size(), "index",
                 fmt::format("below {}", layout.parameters().size()), index);
  if (!in_backward) refuse("gradient_ready: outside of a backward");
  if (buckets.is_ready(index))
    refuse(fmt::format("gradient_ready: '{}' was ready before in this backward",
                       layout.parameters()[index].name));
  if (keeps != gradient.empty() && layout.parameters()[index].size > 0)
    refuse(fmt::format("gradient_ready: the gradient of '{}' {}",
                       layout.parameters()[index].name,
                       keeps ? "is in the array of all gradients, give none"
                             : "is missing: there is no array of all "
                               "gradients with this configuration"));
  collect(index, gradient);
  used[index] = true;
  if (!reduces) return;
  while (const auto bucket = buckets.take_complete())
    send(buckets.range(*bucket));
}

void Engine::Impl::end_backward() {
  if (!in_backward) refuse("end_backward: there was no begin_backward()");
  const auto held_up = buckets.waiting_for();
  if (reduces && held_up)
    report.waited_for = layout.parameters()[*held_up].name;
  for (std::size_t i = 0; keeps && i < layout.parameters().size(); ++i)
    if (!buckets.is_ready(i)) collect(i, {});
  if (reduces)
    while (const auto bucket = buckets.take_any()) {
      report.late_elements += buckets.range(*bucket).size;
      send(buckets.range(*bucket));
    }
  if (!keeps) {
    made.zero->end_backward();
    const shard::ZeroOptimizer::Late late = made.zero->late();
    report.late_elements = comm.size() > 1 ? late.elements : 0;
    if (late.parameter >= 0 && comm.size() > 1)
      report.waited_for =
          layout.parameters()[static_cast<std::size_t>(late.parameter)].name;
  }
  in_backward = false;
  report.backward_seconds +=
      std::chrono::duration<double>(Clock::now() - backward_began).count();
}

// Collective, so that all ranks stop.
void Engine::Impl::require_all_used() const {
  if (config.zero.stage == 0 || config.zero.ignore_unused_parameters) return;
  std::int64_t own = -1;
  for (std::size_t i = used.size(); i-- > 0;)  // empty ones have none to miss
    if (!used[i] && layout.parameters()[i].size > 0)
      own = static_cast<std::int64_t>(i);
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::span(&own, 1), all);
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r] >= 0)
      refuse(fmt::format(
          "step: parameter '{}' had no gradient on rank {}, and "
          "zero.ignore_unused_parameters is false",
          layout.parameters()[static_cast<std::size_t>(all[r])].name, r));
}

EngineReport Engine::Impl::step() {
  if (in_backward) refuse("step: inside a backward; call end_backward() first");
  if (in_evaluation) refuse("step: inside an evaluation");
  if (backwards == 0) refuse("step: there was no backward since the last step");
  if (!is_boundary()) {
    EngineReport between;
    between.applied = false;
    between.at_boundary = false;
    between.phase = optimizer().phase();
    between.steps = steps;
    between.loss_scale = loss_scale();
    return between;
  }
  require_all_used();
  for (std::size_t g = 0; g < base_rates.size(); ++g)
    optimizer().set_learning_rate(g,
                                  config.schedule.rate(base_rates[g], steps));
  View sent;
  if (keeps)
    sent = reduces && is_converted() ? travelling.view()
                                     : to_send({0, layout.size()});
  EngineReport done = report;
  try {
    static_cast<optim::StepReport&>(done) =
        optimizer().step({.params = params, .grads = sent});
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNonFinite) begin_window();
    throw;
  }
  // What backward sent counts too.
  done.bytes_sent = comm.counters().bytes_sent - counters.bytes_sent;
  done.collectives = comm.counters().collectives - counters.collectives;
  if (done.applied) ++steps;
  done.steps = steps;
  done.learning_rate = base_rates.empty() ? 0 : optimizer().learning_rate(0);
  begin_window();
  return done;
}

}  // namespace thinwire::engine
