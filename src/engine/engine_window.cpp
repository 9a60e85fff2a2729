// SPDX-License-Identifier: Apache-2.0
// One window of accumulation: backwards, gradients on their way, the step.
#include <fmt/format.h>

#include <array>

#include "comm/failure.h"
#include "core/require.h"
#include "core/set_to_zero.h"
#include "engine/engine_impl.h"

namespace thinwire::engine {

using Clock = std::chrono::steady_clock;

void Engine::Impl::begin_window() {
  set_to_zero(grads);
  backwards = 0;
  complete = false;
  reduces = false;
  has_sent = false;
  waited = 0;
  marks.forget();
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
    sums_count = true;
  }
  if (sums_count) set_to_zero(grads);
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
    kernels::accumulate(sums.view().subview(p.offset, p.size),
                        grads.subview(p.offset, p.size));
  }
  buckets.mark_ready(index);
}

void Engine::Impl::gradient_ready(std::size_t index, ConstView gradient) {
  require(index < layout.parameters().size(), "index",
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
  if (has_sent && keeps) finish_sent();
  marks.remember(params, own_gradients());
}

// From here on gradients are in the caller's sight, who may read them, or scale
// them by mistake: nothing may be under way in them. step() would be next.
void Engine::Impl::finish_sent() {
  const auto began = Clock::now();
  comm.finish_queued();
  waited += std::chrono::duration<double>(Clock::now() - began).count();
}

void Engine::Impl::cancel_backward(std::string_view reason) {
  if (!in_backward) return;
  in_backward = false;
  bool is_sent = has_sent;
  if (!keeps) try {
      made.zero->cancel_backward();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCommFailure) throw;
      is_sent = true;
    }
  if (!is_sent) return begin_window();
  // What has left cannot be taken back, and other ranks wait for the rest.
  comm.give_up(reason);
  throw Error(ErrorCode::kCommFailure,
              fmt::format("cancel_backward: gradients have been sent before "
                          "backward failed, so this rank has given up: {}",
                          reason));
}

void Engine::Impl::require_untouched() {
  const auto change = marks.change(params, own_gradients());
  if (!change) return;
  const std::string& name = layout.parameters()[change->parameter].name;
  const std::string text =
      change->is_of_gradient
          ? fmt::format(
                "step: the gradient of '{}' was changed between backward and "
                "step() (clip_grad_norm_ does that): by then it may have been "
                "averaged. To clip, set Config::gradient_clipping "
                "(\"gradient_clipping\" in a file); step() sets gradients to 0",
                name)
          : fmt::format(
                "step: parameter '{}' was changed between backward and step() "
                "(the step() of another optimizer does that): the engine "
                "updates parameters. Remove that call; what is to change them "
                "otherwise comes after step()",
                name);
  comm.give_up(text);  // other ranks may be in this step already
  refuse(text);
}

void Engine::Impl::explain(const Error& error) const {
  if (error.code() != ErrorCode::kCommFailure) return;
  const std::string text = error.what();
  constexpr std::string_view kHint = "ranks must make as many steps";
  if (!comm::failure::is_out_of_step(text) ||
      text.find(kHint) != std::string::npos)
    return;
  throw Error(
      ErrorCode::kCommFailure,
      fmt::format(
          "{} (this rank has made {} steps; {}: if that rank had fewer "
          "batches, drop the last ones elsewhere (drop_last), or pad with a "
          "sampler such as DistributedRandomSampler)",
          text, steps, kHint));
}

double Engine::Impl::mean(double value) {
  // Told apart from other exchanges by its size, and by the tag.
  constexpr double kTag = 0x6d65616e;
  const std::array<double, 3> own{kTag, static_cast<double>(steps), value};
  const auto ranks = static_cast<std::size_t>(comm.size());
  std::vector<double> all(own.size() * ranks);
  comm.all_gather(ConstView(own.data(), own.size(), DType::kFloat64),
                  View(all.data(), all.size(), DType::kFloat64));
  double sum = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    const double* const its = all.data() + own.size() * r;
    if (its[0] != kTag)
      throw Error(ErrorCode::kCommFailure,
                  fmt::format("mean: rank {} is in another call", r));
    if (its[1] != all[1])
      refuse(fmt::format(
          "mean: ranks have made different numbers of steps: {} on rank 0, {} "
          "on rank {}: if their numbers of batches differ, drop the last ones "
          "(drop_last), or pad with a sampler",
          all[1], its[1], r));
    sum += its[2];
  }
  return sum / static_cast<double>(ranks);
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
  require_untouched();
  require_all_used();
  rates.apply(optimizer(), steps);
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
  // What backward sent, and waited for, counts too.
  done.seconds += waited;
  done.exchange_seconds += waited;
  done.bytes_sent = comm.counters().bytes_sent - counters.bytes_sent;
  done.collectives = comm.counters().collectives - counters.collectives;
  if (done.applied) ++steps;
  done.steps = steps;
  done.learning_rate =
      optimizer().num_groups() == 0 ? 0 : optimizer().learning_rate(0);
  begin_window();
  return done;
}

}  // namespace thinwire::engine
