// SPDX-License-Identifier: Apache-2.0
// One window of accumulation: backwards, gradients on their way, the step.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <set>
#include <string>

#include "comm/failure.h"
#include "core/require.h"
#include "core/set_to_zero.h"
#include "engine/engine_impl.h"
#include "optim/exact_exchange.h"
#include "zero/checks.h"

namespace thinwire::engine {

using Clock = std::chrono::steady_clock;

void Engine::Impl::begin_window() {
  set_to_zero(grads);
  window->restart();
  if (auto* const early = optimizer().early()) early->forget();
  waited = 0;
  marks.forget();
  accumulates_in_fp32 = false;
  report = {};
}

void Engine::Impl::begin_backward() {
  if (in_evaluation) refuse("begin_backward: inside an evaluation");
  const std::int64_t backwards = window->backwards();
  if (window->is_complete() && !window->in_backward())
    refuse(fmt::format(
        "begin_backward: the window of {} backward(s) is complete; call step() "
        "first, or set gradient_accumulation_steps or the boundary",
        backwards));
  const exchange::Backward which{
      .is_first = backwards == 0,
      .is_last = boundary.value_or(is_managed() &&
                                   backwards + 1 >= accumulation_steps)};
  const auto* const early = optimizer().early();
  const bool sends = has_gradient_array && which.is_last &&
                     config.comm.overlap && comm.size() > 1 &&
                     early != nullptr &&
                     (early->reduces() || early->measures());
  window->begin(which, sends);
  // From the second backward on, 16-bit gradients are added up in fp32.
  if (has_gradient_array && backwards == 1 &&
      grads.dtype() != DType::kFloat32 &&
      config.accumulation_dtype == DType::kFloat32) {
    const MemoryScope scope(MemoryKind::kGradients);
    if (sums.empty()) sums = Buffer::of<float>(layout.size());
    kernels::convert(grads, sums.view());
    accumulates_in_fp32 = true;
  }
  if (accumulates_in_fp32) set_to_zero(grads);
  if (which.is_first) counters = comm.counters();
  if (!has_gradient_array) made.zero->begin_backward(which);
  backward_began = Clock::now();
}

void Engine::Impl::gradient_ready(std::size_t index, ConstView gradient) {
  require(index < layout.parameters().size(), "index",
          fmt::format("below {}", layout.parameters().size()), index);
  const Parameter& p = layout.parameters()[index];
  if (!window->in_backward()) refuse("gradient_ready: outside of a backward");
  if (window->is_ready(index))
    refuse(fmt::format("gradient_ready: '{}' was ready before in this backward",
                       p.name));
  if (has_gradient_array != gradient.empty() && p.size > 0)
    refuse(fmt::format("gradient_ready: the gradient of '{}' {}", p.name,
                       has_gradient_array
                           ? "is in the array of all gradients, give none"
                           : "is missing: there is no array of all "
                             "gradients with this configuration"));
  if (!has_gradient_array)
    zero::require_gradient(p, config.precision.dtype, gradient);
  window->collect(index, gradient);
}

void Engine::Impl::store(const exchange::GradientPart& part) {
  const Range& range = part.range;
  if (!has_gradient_array) {
    if (!part.values.empty()) made.zero->collect(part.parameter, part.values);
  } else if (accumulates_in_fp32) {
    kernels::accumulate(sums.view().subview(range.offset, range.size),
                        grads.subview(range.offset, range.size));
  }
}

bool Engine::Impl::send(std::size_t bucket) {
  const Range& range = window->buckets()[bucket];
  optim::EarlyGradients& early = *optimizer().early();
  if (early.measures()) {  // the step needs its norm first
    early.measure(window_gradients(), range);
    return false;
  }
  early.reduce(to_send(range), range);
  return true;
}

void Engine::Impl::end_backward() {
  if (!has_gradient_array) made.zero->end_backward();
  window->end();
  exchange::LateGradients late = window->late();
  const auto* const early = optimizer().early();
  if (early != nullptr && early->measures()) late = {};  // nothing is sent
  if (!has_gradient_array && comm.size() > 1) late = made.zero->late();
  report.late_elements = late.elements;
  if (late.parameter >= 0)
    report.waited_for =
        layout.parameters()[static_cast<std::size_t>(late.parameter)].name;
  report.backward_seconds +=
      std::chrono::duration<double>(Clock::now() - backward_began).count();
  if (window->has_sent()) finish_sent();
  marks.remember(params, own_gradients());
}

// From here on gradients are in the caller's sight, who may read them, or scale
// them by mistake: nothing may be under way in them. step() would be next.
void Engine::Impl::finish_sent() {
  const auto began = Clock::now();
  optimizer().early()->finish();
  comm.finish_queued();
  for (const optim::ExpertGroup& group : config.experts())
    group.comm->finish_queued();
  waited += std::chrono::duration<double>(Clock::now() - began).count();
}

void Engine::Impl::cancel_backward(std::string_view reason) {
  if (!window->in_backward()) return;
  bool begins_anew = window->cancel();
  if (!has_gradient_array) try {
      made.zero->cancel_backward();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCommFailure) throw;
      begins_anew = false;
    }
  if (begins_anew) return begin_window();
  // What has been sent cannot be taken back, and other ranks wait for the rest.
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
  // Who sends nothing at all may be gone with its machine; who sends something
  // else, or has left in good order, is not.
  std::set<std::string> hosts;
  for (const int rank : comm::failure::waited_for(text))
    if (rank < comm.size())
      hosts.insert(host_names[static_cast<std::size_t>(rank)]);
  std::string gone;
  if (!hosts.empty())
    gone = fmt::format(
        "on host {}: the machine or its network may be gone, or a rank hangs "
        "or needs longer than the time-out; ",
        fmt::join(hosts, ", "));
  throw Error(
      ErrorCode::kCommFailure,
      fmt::format(
          "{} ({}this rank has made {} steps; {}: if that rank had fewer "
          "batches, drop the last ones elsewhere (drop_last), or pad with a "
          "sampler such as DistributedRandomSampler)",
          text, gone, steps, kHint));
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

// Collective, so that all ranks stop. An expert may have had nothing to do.
void Engine::Impl::require_all_used() const {
  if (config.zero.stage == 0 || config.zero.ignore_unused_parameters) return;
  std::int64_t own = -1;
  const auto parameters = layout.parameters();
  const std::vector<std::size_t> dense = held_parameters().front().parameters;
  for (std::size_t i = dense.size(); i-- > 0;)  // one to miss
    if (!window->has_gradient(dense[i]) && parameters[dense[i]].size > 0)
      own = static_cast<std::int64_t>(i);
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::span(&own, 1), all);
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r] >= 0)
      refuse(fmt::format(
          "step: parameter '{}' had no gradient on rank {}, and "
          "zero.ignore_unused_parameters is false",
          parameters[dense[static_cast<std::size_t>(all[r])]].name, r));
}

// Collective over the ranks that hold a model together, in their order.
double Engine::Impl::norm_of_all_parts(double own) {
  const double square = own * own;
  std::vector<double> all(static_cast<std::size_t>(model_parallel->size()));
  model_parallel->all_gather(std::span(&square, 1), all);
  double sum = 0;
  for (const double part : all) sum += part;
  return std::sqrt(sum);
}

EngineReport Engine::Impl::step(const optim::FinalRange& final_range) {
  if (window->in_backward())
    refuse("step: inside a backward; call end_backward() first");
  if (in_evaluation) refuse("step: inside an evaluation");
  if (window->backwards() == 0)
    refuse("step: there was no backward since the last step");
  if (!is_boundary()) {
    EngineReport between;
    between.applied = false;
    between.at_boundary = false;
    between.phase = optimizer().progress().phase;
    between.steps = steps;
    between.loss_scale = loss_scale();
    return between;
  }
  require_untouched();
  require_all_used();
  rates.apply(optimizer().groups(), steps);
  View sent;
  if (has_gradient_array)
    sent = window->has_sent() && is_converted() ? all_travelling()
                                                : to_send({0, layout.size()});
  optim::StepInput input{
      .params = params, .grads = sent, .final_range = final_range};
  if (model_parallel != nullptr)
    input.whole_norm = [this](double own) { return norm_of_all_parts(own); };
  EngineReport done = report;
  step_began = now();
  try {
    static_cast<optim::StepReport&>(done) = optimizer().step(input);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNonFinite) begin_window();
    throw;
  }
  // What backward sent, and waited for, counts too.
  done.seconds += waited;
  done.exchange_seconds += waited;
  optim::report_traffic(done, comm.counters() - counters);
  if (done.applied) ++steps;
  done.steps = steps;
  const optim::ParameterGroups& groups = optimizer().groups();
  done.learning_rate = groups.num_groups() == 0 ? 0 : groups.learning_rate(0);
  const double waited_in_backward = waited;
  begin_window();
  watch(done, waited_in_backward);
  return done;
}

}  // namespace thinwire::engine
