// SPDX-License-Identifier: Apache-2.0
#include "thinwire/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/make_optimizer.h"
#include "optim/require.h"
#include "shard/bucket_schedule.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::engine {

using optim::Phase;

namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::kFailedPrecondition, text);
}

void set_to_zero(View values) {
  if (!values.empty()) std::memset(values.data(), 0, values.bytes());
}

// What ranks must have been told alike; optimizers compare their own options.
std::string description(const Config& config) {
  Config common = config;
  common.optimizer = {};
  common.comm.num_threads = 0;
  common.train_gpt.clear();
  return fmt::format("optimizer {}\n{}", name_of(config.optimizer),
                     common.to_json());
}

}  // namespace

struct Engine::Impl {
  Impl(comm::Communicator& c, const ParameterLayout& l, const Config& settings,
       View p, View g)
      : comm(c),
        layout(l),
        config(settings),
        params(p),
        grads(g),
        accumulation_steps(settings.batch(c.size()).accumulation_steps),
        keeps(keeps_gradients(settings, c.size())),
        buckets(layout, {}) {}

  comm::Communicator& comm;
  const ParameterLayout layout;
  const Config config;
  const View params;
  const View grads;
  const std::int64_t accumulation_steps;
  const bool keeps;  // gradients are in `grads`; else handed over one by one
  std::vector<double> base_rates;  // per group, before the schedule
  std::int64_t steps = 0;

  // ---- the window: what has happened since the last step
  std::int64_t backwards = 0;
  std::optional<bool> boundary;  // set by the caller
  bool complete = false;         // the last backward was its last one
  bool in_backward = false;
  bool in_evaluation = false;
  bool reduces = false;   // buckets of this backward leave as they fill
  bool has_sent = false;  // one has left
  Buffer sums;            // fp32, of 16-bit gradients; made when needed
  bool sums_count = false;
  std::vector<bool> used;  // parameters that have had a gradient
  Buffer travelling;       // gradients in the dtype of the wire, where that is
                           // another one
  shard::BucketSchedule buckets;
  EngineReport report;
  comm::Counters counters;  // at the window's first backward
  Clock::time_point backward_began;

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
        comm.size() > 1 && optimizer().phase() == Phase::kExact;
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

  void begin_backward();
  void gradient_ready(std::size_t index, ConstView gradient);
  void end_backward();
  void collect(std::size_t index, ConstView gradient);
  void require_all_used() const;
  void begin_window();
  [[nodiscard]] EngineReport step();
};

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

bool keeps_gradients(const Config& config, int world) {
  if (config.zero.stage == 0) return true;
  if (config.zero.stage == 2) return false;
  // At stage 1 an array of 16 bits beside one of sums would be a waste.
  const bool adds_up = !config.managed_gradient_accumulation ||
                       config.batch(world).accumulation_steps > 1;
  const bool is_wider = config.precision.dtype != DType::kFloat32 &&
                        config.accumulation_dtype == DType::kFloat32;
  return !(adds_up && is_wider);
}

Engine::Engine(comm::Communicator& comm, const ParameterLayout& layout,
               const Config& config, View params, View grads,
               ConstView initial) {
  config.validate(comm.size());
  const auto check = [&](const char* name, ConstView view, DType dtype) {
    if (view.dtype() != dtype || view.size() != layout.size())
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} must be {} of {} elements, got {} of {}",
                              name, to_string(dtype), layout.size(),
                              to_string(view.dtype()), view.size()));
  };
  check("params", params, config.precision.dtype);
  if (keeps_gradients(config, comm.size())) {
    check("grads", grads, config.precision.dtype);
  } else if (!grads.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("grads must be empty with this configuration: "
                            "gradients are handed over one by one; got {} "
                            "elements",
                            grads.size()));
  }
  if (!initial.empty()) check("initial", initial, DType::kFloat32);
  comm::require_same(comm, "parameter layout and configuration",
                     layout.describe() + description(config));
  impl_ = std::make_unique<Impl>(comm, layout, config, params, grads);

  // Optimizers have the last word on what is refused: nothing is written
  // before. Rank 0's parameters are everybody's, before they are rounded.
  const ConstView own = initial.empty() ? ConstView(params) : initial;
  if (config.zero.stage > 0) {
    impl_->made = make_optimizer(comm, layout, config, params, own);
    // Parameter by parameter: no rank has memory for all of them in fp32.
    for (const Parameter& p : layout.parameters()) {
      std::vector<float> values(p.size);
      kernels::convert(own.subview(p.offset, p.size), values);
      comm.broadcast(values, 0);
      impl_->made.zero->set_full_parameter(p.name, values);
    }
  } else if (config.precision.dtype == DType::kFloat32) {
    impl_->made = make_optimizer(comm, layout, config, params, own);
    if (!initial.empty()) kernels::convert(initial, params);
    comm.broadcast(params, 0);
  } else {
    Buffer common(layout.size(), own.dtype());
    kernels::convert(own, common.view());
    comm.broadcast(common.view(), 0);
    impl_->made = make_optimizer(comm, layout, config, params, common.view());
    kernels::convert(common.view(), params);
  }
  for (std::size_t g = 0; g < optimizer().num_groups(); ++g)
    impl_->base_rates.push_back(optimizer().learning_rate(g));
  impl_->buckets = shard::BucketSchedule(
      impl_->layout,
      impl_->made.zero != nullptr
          ? impl_->made.zero->buckets()
          : shard::equal_buckets(layout.size(), config.comm.bucket_elements));
  // What a window takes is there before the first one.
  if (!impl_->keeps) {
    impl_->made.zero->begin_backward(
        {.is_first = true, .is_last = impl_->is_boundary()});
    impl_->made.zero->cancel_backward();
  }
  impl_->begin_window();
}

Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;

const Config& Engine::config() const noexcept { return impl_->config; }

optim::Optimizer& Engine::optimizer() noexcept { return impl_->optimizer(); }

namespace {

[[noreturn]] void only_with_zero(const char* what) {
  refuse(fmt::format("{}: only with ZeRO; here every rank has whole values",
                     what));
}

}  // namespace

std::vector<float> Engine::full_parameter(std::string_view name) {
  if (impl_->made.zero != nullptr)
    return impl_->made.zero->full_parameter(name);
  const Parameter& p = impl_->layout.parameter(name);
  std::vector<float> values(p.size);
  kernels::convert(masters().subview(p.offset, p.size), values);
  return values;
}

std::vector<float> Engine::full_gradient(std::string_view name) {
  if (impl_->made.zero == nullptr) only_with_zero("full_gradient");
  if (impl_->in_backward || impl_->backwards == 0 || !impl_->is_boundary())
    refuse("full_gradient: only between a window's last backward and step()");
  std::vector<float> gradient = impl_->made.zero->full_gradient(
      name, impl_->keeps ? impl_->gathered() : View{});
  // Sums have been reduced: another backward would be added to means.
  impl_->complete = true;
  return gradient;
}

std::vector<float> Engine::full_state(std::string_view name,
                                      std::string_view key) {
  if (impl_->made.zero == nullptr) only_with_zero("full_state");
  return impl_->made.zero->full_state(name, key);
}

shard::ZeroOptimizer& Engine::zero() {
  if (impl_->made.zero == nullptr) only_with_zero("zero");
  return *impl_->made.zero;
}

ConstView Engine::masters() const noexcept {
  if (impl_->made.mixed == nullptr || impl_->made.mixed->masters().empty())
    return impl_->params;
  return impl_->made.mixed->masters();
}

double Engine::loss_scale() const noexcept { return impl_->loss_scale(); }

double Engine::loss_factor() const noexcept {
  return impl_->loss_scale() / static_cast<double>(impl_->accumulation_steps);
}

void Engine::begin_backward() { impl_->begin_backward(); }

void Engine::gradient_ready(std::size_t index, ConstView gradient) {
  impl_->gradient_ready(index, gradient);
}

void Engine::end_backward() { impl_->end_backward(); }

void Engine::cancel_backward() {
  if (!impl_->in_backward) return;
  impl_->in_backward = false;
  if (!impl_->keeps) impl_->made.zero->cancel_backward();
  // What has left cannot be taken back, and other ranks wait for the rest.
  if (impl_->has_sent)
    throw Error(ErrorCode::kCommFailure,
                "cancel_backward: gradients of this backward have been sent");
  impl_->begin_window();
}

bool Engine::is_boundary() const noexcept { return impl_->is_boundary(); }

void Engine::set_accumulation_boundary(std::optional<bool> boundary) {
  if (impl_->in_backward)
    refuse("set_accumulation_boundary: inside a backward");
  impl_->boundary = boundary;
}

EngineReport Engine::step() { return impl_->step(); }

void Engine::begin_evaluation() {
  if (impl_->in_backward) refuse("begin_evaluation: inside a backward");
  if (impl_->in_evaluation) refuse("begin_evaluation: inside another one");
  impl_->optimizer().synchronize(impl_->params);
  impl_->in_evaluation = true;
}

void Engine::end_evaluation() {
  if (!impl_->in_evaluation) refuse("end_evaluation: there is none");
  impl_->in_evaluation = false;
}

StateDict Engine::state_dict() const {
  if (impl_->backwards > 0)
    refuse("state_dict: inside a window of accumulation; call step() first");
  StateDict state = impl_->optimizer().state_dict();
  state.put_integer("engine_steps", impl_->steps);
  return state;
}

void Engine::load_state_dict(const StateDict& state) {
  if (impl_->backwards > 0)
    refuse("load_state_dict: inside a window of accumulation; step() first");
  const std::int64_t steps = state.integer("engine_steps");
  if (steps < 0)
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("engine_steps must be >= 0, got {}", steps));
  impl_->optimizer().load_state_dict(state);
  impl_->steps = steps;
  if (impl_->made.mixed != nullptr)
    impl_->made.mixed->write_params(impl_->params);
}

}  // namespace thinwire::engine
