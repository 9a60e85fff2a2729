// SPDX-License-Identifier: Apache-2.0
// The engine's windows of accumulation, which contain backwards, gradients in
// flight, and the step.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <set>
#include <string>

#include "comm/failure.h"
#include "core/require.h"
#include "core/require_view.h"
#include "core/set_to_zero.h"
#include "engine/engine_impl.h"
#include "exchange/bucket_schedule.h"
#include "exchange/exact_average.h"
#include "optim/step_pieces.h"
#include "thinwire/engine/leaders.h"
#include "thinwire/exchange/bucket_rule.h"
#include "zero/checks.h"

namespace thinwire::engine {

using Clock = std::chrono::steady_clock;

void Engine::Impl::make_window() {
  if (!has_gradient_array) {
    window = &made.zero->gradients();
    // Allocates the memory of a window before the first one.
    window->begin({.is_first = true, .is_last = is_boundary()});
    static_cast<void>(window->cancel());
    return;
  }
  std::vector<Range> buckets;
  if (made.zero != nullptr)
    buckets = made.zero->gradients().buckets();
  else if (const auto* const early = optimizer().early())
    buckets = early->buckets();
  if (buckets.empty())  // the optimizer accepts any range
    buckets = exchange::equal_buckets(
        layout.size(),
        exchange::bucket_elements(config.comm.bucket_elements, layout.size(),
                                  comm.hosts(), exchange::kExactBits));
  window = &own_window.emplace(layout, std::move(buckets), *this);
}

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
  window->begin(which);
  if (which.is_first) counters = comm.counters();
  backward_began = Clock::now();
}

bool Engine::Impl::begin(exchange::Backward which) {
  // From the second backward on, 16-bit gradients are accumulated in fp32.
  if (window->backwards() == 1 && grads.dtype() != DType::kFloat32 &&
      config.accumulation_dtype == DType::kFloat32) {
    const MemoryScope scope(MemoryKind::kGradients);
    if (sums.empty()) sums = Buffer::of<float>(layout.size());
    kernels::convert(grads, sums.view());
    accumulates_in_fp32 = true;
  }
  if (accumulates_in_fp32) set_to_zero(grads);
  const auto* const early = optimizer().early();
  return which.is_last && config.comm.overlap && comm.size() > 1 &&
         early != nullptr && (early->reduces() || early->measures());
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
                           ? "is in the array of all gradients, pass none"
                           : "is missing: there is no array of all "
                             "gradients with this configuration"));
  require_aligned("gradient", gradient);
  window->collect(index, gradient);
}

void Engine::Impl::store(const exchange::GradientPart& part) {
  const Range& range = part.range;
  if (accumulates_in_fp32)
    kernels::accumulate(sums.view().subview(range.offset, range.size),
                        grads.subview(range.offset, range.size));
}

// Returns whether gradients are converted before they are sent. 16-bit
// gradients are added in fp32 and rounded once, regardless of the wire's dtype.
// Some optimizers accept only 16-bit gradients.
bool Engine::Impl::is_converted() {
  const DType dtype = window_gradients().dtype();
  if (wire_dtype() == dtype || dtype != DType::kFloat32) return false;
  if (made.zero != nullptr) return false;  // converts bucket by bucket
  const bool travels =
      comm.size() > 1 && optimizer().progress().phase == optim::Phase::kExact;
  return travels ||
         (made.mixed != nullptr && !made.mixed->takes_gradients(dtype));
}

View Engine::Impl::to_send(Range range) {
  if (!is_converted()) return window_gradients();
  const MemoryScope scope(MemoryKind::kBuckets);
  if (travelling.empty())
    travelling = Buffer(params.first_size(), wire_dtype());
  if (range.offset < travelling.size()) {
    const std::size_t size =
        std::min(range.size, travelling.size() - range.offset);
    kernels::convert(window_gradients().subview(range.offset, size),
                     travelling.view().subview(range.offset, size));
  }
  return all_travelling();
}

// If most parameters have 16 bits, gradients of the fp32 parameters stay in
// fp32.
View Engine::Impl::all_travelling() {
  const std::size_t first = travelling.size();
  return View::joined(travelling.view(),
                      window_gradients().subview(first, layout.size() - first));
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
  window->end();
  exchange::LateGradients late = window->late();
  const auto* const early = optimizer().early();
  const bool only_measures = early != nullptr && early->measures();
  if (only_measures || comm.size() == 1) late = {};  // nothing is sent
  report.late_elements = late.elements;
  if (late.parameter >= 0)
    report.waited_for =
        layout.parameters()[static_cast<std::size_t>(late.parameter)].name;
  report.backward_seconds +=
      std::chrono::duration<double>(Clock::now() - backward_began).count();
  if (has_gradient_array && window->has_sent()) finish_sent();
  marks.remember(params, own_gradients());
}

// Waits for exchanges that use the gradients, because the caller may read or
// mistakenly scale gradients before step().
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
  if (window->cancel()) return begin_window();
  // Sent gradients cannot be revoked, and other ranks wait for the rest.
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
                "updates parameters. Remove that call; make any other change "
                "to them after step()",
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
  // The machine of a silent rank may be gone. A rank that has sent something
  // else, or has left in order, is alive.
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

// Throws on all ranks if a parameter had no gradient. Experts may have none.
// Collective.
void Engine::Impl::require_all_used() const {
  if (config.zero.stage == 0 || config.zero.ignore_unused_parameters) return;
  std::int64_t own = -1;
  const auto parameters = layout.parameters();
  const std::vector<std::size_t> dense = held_parameters().front().parameters;
  for (std::size_t i = dense.size(); i-- > 0;)
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
  rates.apply(steps);
  View sent;
  if (has_gradient_array)
    sent = window->has_sent() && is_converted() ? all_travelling()
                                                : to_send({0, layout.size()});
  optim::StepInput input{
      .params = params, .grads = sent, .final_range = final_range};
  model_parallel.join(input);
  EngineReport done = report;
  step_began = now();
  try {
    static_cast<optim::StepReport&>(done) = optimizer().step(input);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNonFinite) begin_window();
    throw;
  }
  // Adds the traffic and the waits of backward to the report.
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

// ---- the same, as the public class offers it

void Engine::begin_backward() { impl_->begin_backward(); }

void Engine::gradient_ready(std::size_t index, ConstView gradient) {
  impl_->exchange([&] { impl_->gradient_ready(index, gradient); });
}

void Engine::end_backward() {
  impl_->exchange([this] { impl_->end_backward(); });
}

void Engine::cancel_backward(std::string_view reason) {
  impl_->cancel_backward(reason);
}

bool Engine::is_boundary() const noexcept { return impl_->is_boundary(); }

void Engine::set_accumulation_boundary(std::optional<bool> boundary) {
  if (impl_->window->in_backward())
    refuse("set_accumulation_boundary: inside a backward");
  impl_->boundary = boundary;
}

EngineReport Engine::step(const optim::FinalRange& final_range) {
  return impl_->exchange([&] { return impl_->step(final_range); });
}

double Engine::mean(double value) {
  return impl_->exchange(
      [&] { return engine::mean(impl_->comm, impl_->steps, value); });
}

}  // namespace thinwire::engine
