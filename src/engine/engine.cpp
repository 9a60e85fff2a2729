// SPDX-License-Identifier: Apache-2.0
#include "thinwire/engine/engine.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "checkpoint/format/safetensors.h"
#include "core/require_view.h"
#include "engine/engine_impl.h"
#include "optim/saved_state.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::engine {

using config::Config;
using config::LearningRateFunction;

namespace {

// Returns a line that names the fp32 parameters of a 16-bit model.
std::string wide_of(ConstView params) {
  return params.is_joined()
             ? fmt::format("\nfloat32 from {}\n", params.first_size())
             : "";
}

}  // namespace

bool keeps_gradients(const Config& config, int world) {
  if (config.zero.stage == 0) return true;
  if (config.zero.stage == 2) return false;
  // At stage 1 an array of fp32 sums makes an array of 16-bit gradients
  // unnecessary.
  const bool adds_up = !config.managed_gradient_accumulation ||
                       config.batch(world).accumulation_steps > 1;
  const bool is_wider = config.precision.dtype != DType::kFloat32 &&
                        config.accumulation_dtype == DType::kFloat32;
  return !(adds_up && is_wider);
}

bool shards_masters(const Config& config) noexcept {
  return config.zero.stage > 0 ||
         std::holds_alternative<lean::LeanOnebitAdamOptions>(config.optimizer);
}

Engine::Engine(comm::Communicator& comm, const ParameterLayout& layout,
               const Config& config, View params, View grads, ConstView initial,
               optim::MakeRule rule) {
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
    require(grads.first_size() == params.first_size(), "grads",
            fmt::format("float32 from element {} on, as params",
                        params.first_size()),
            fmt::format("from {} on", grads.first_size()));
  } else if (!grads.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("grads must be empty with this configuration: "
                            "gradient_ready(index, gradient) hands over one "
                            "after the other; got {} elements",
                            grads.size()));
  }
  if (!initial.empty()) check("initial", initial, DType::kFloat32);
  require_params_and_grads(params, grads);
  require_aligned("initial", initial);
  for (const Parameter& p : layout.parameters())
    checkpoint::require_tensor(p.name, p.shape);
  const std::vector<optim::ExpertGroup> experts = config.experts();
  optim::require_experts(layout, experts);
  optim::require_same_parameters(comm, layout, experts,
                                 "parameter layout and configuration",
                                 config.describe() + wide_of(params));
  impl_ = std::make_unique<Impl>(comm, layout, config, params, grads,
                                 std::move(rule));
  impl_->start(initial);
  impl_->notices.at_start(comm, impl_->optimizer());
}

void Engine::Impl::start(ConstView initial) {
  make_optimizer(initial);
  watch_the_freeze();
  rates.begin(optimizer().groups());
  make_window();
  whole.emplace(*this);
  begin_window();
}

// The optimizer is made first, because it may refuse its arguments, after which
// nothing may have changed. All ranks get rank 0's parameters before rounding.
void Engine::Impl::make_optimizer(ConstView initial) {
  const ConstView own = initial.empty() ? ConstView(params) : initial;
  const auto make = [&](ConstView from) {
    made = engine::make_optimizer(comm, layout, config, params, from, own_rule);
  };
  if (shards_masters(config)) {
    make(own);
    // Parameters are sent one by one, because no rank has memory for all of
    // them in fp32.
    for (const auto& held : held_parameters())
      for (const std::size_t i : held.parameters) {
        const Parameter& p = layout.parameters()[i];
        std::vector<float> values(p.size);
        kernels::convert(own.subview(p.offset, p.size), values);
        held.comm->broadcast(values, 0);
        set_parameter(p, values);
      }
  } else if (config.precision.dtype == DType::kFloat32) {
    make(own);
    if (!initial.empty()) kernels::convert(initial, params);
    broadcast(params);
  } else {
    Buffer common(layout.size(),
                  own.is_joined() ? DType::kFloat32 : own.dtype());
    kernels::convert(own, common.view());
    broadcast(common.view());
    make(common.view());
    kernels::convert(common.view(), params);
  }
}

std::vector<optim::HeldParameters> Engine::Impl::held_parameters() const {
  return optim::held_parameters(comm, layout, config.experts());
}

// Sends the values of the first rank to all ranks that hold the same
// parameters.
void Engine::Impl::broadcast(View values) {
  if (config.experts().empty()) return comm.broadcast(values, 0);
  for (const auto& held : held_parameters())
    for (const std::size_t i : held.parameters) {
      const Parameter& p = layout.parameters()[i];
      held.comm->broadcast(values.subview(p.offset, p.size), 0);
    }
}

Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;

const Config& Engine::config() const noexcept { return impl_->config; }

const optim::Optimizer& Engine::optimizer() const noexcept {
  return impl_->optimizer();
}

comm::Communicator& Engine::communicator() const noexcept {
  return impl_->given;
}

void Engine::set_model_parallel(comm::Communicator& comm,
                                std::span<const std::size_t> uncounted) {
  impl_->model_parallel =
      ModelParallel(comm, impl_->layout, impl_->config, uncounted);
}

LearningRates& Engine::learning_rates() noexcept { return impl_->rates; }

zero::WholeValues& Engine::whole_values() noexcept { return *impl_->whole; }

checkpoint::Saver& Engine::saver() noexcept { return impl_->saver; }

void Engine::read_masters(bool only_written) {
  impl_->require_between_windows("read_masters");
  impl_->marks.forget();
  if (only_written) return read_written(impl_->made, impl_->params);
  impl_->optimizer().set_masters(impl_->params);
}

zero::ShardedOptimizer& Engine::zero() {
  if (impl_->made.zero == nullptr) refuse_without_zero("zero");
  impl_->marks.forget();  // its setters may write parameters
  return *impl_->made.zero;
}

ConstView Engine::masters() const noexcept {
  if (impl_->made.mixed == nullptr || impl_->made.mixed->masters().empty())
    return impl_->params;
  return impl_->made.mixed->masters();
}

double Engine::loss_scale() const noexcept { return impl_->loss_scale(); }

void Engine::set_loss_scale(double scale) {
  impl_->require_between_windows("set_loss_scale");
  comm::require_same(impl_->comm, "loss_scale", fmt::format("{}", scale));
  if (impl_->made.zero != nullptr)
    return impl_->made.zero->set_loss_scale(scale);
  if (impl_->made.mixed != nullptr)
    return impl_->made.mixed->set_loss_scale(scale);
  refuse("set_loss_scale: the loss scale is 1 unless parameters are fp16");
}

void Engine::log_phases(bool is_logged) noexcept {
  impl_->notices.log_phases(is_logged);
}

double Engine::loss_factor() const noexcept {
  return impl_->loss_scale() / static_cast<double>(impl_->accumulation_steps);
}

void Engine::begin_evaluation() {
  if (impl_->window->in_backward())
    refuse("begin_evaluation: inside a backward");
  if (impl_->in_evaluation) refuse("begin_evaluation: inside another one");
  const bool untouched =
      !impl_->marks.change(impl_->params, impl_->own_gradients());
  impl_->exchange(
      [this] { optim::synchronize(impl_->optimizer(), impl_->params); });
  if (untouched && impl_->window->backwards() > 0)
    impl_->marks.remember(impl_->params, impl_->own_gradients());
  impl_->in_evaluation = true;
}

void Engine::end_evaluation() {
  if (!impl_->in_evaluation) refuse("end_evaluation: there is none");
  impl_->in_evaluation = false;
}

StateDict Engine::state_dict() const {
  if (impl_->window->backwards() > 0)
    refuse("state_dict: inside a window of accumulation; call step() first");
  StateDict state = copy_of(impl_->optimizer().state());
  state.put_integer("engine_steps", impl_->steps);
  impl_->rates.save(state);
  return state;
}

void Engine::load_state_dict(const StateDict& state) {
  if (impl_->window->backwards() > 0)
    refuse("load_state_dict: inside a window of accumulation; step() first");
  std::int64_t steps = 0;
  const auto check = [&] {
    steps = optim::saved_count(state, "engine_steps");
    impl_->rates.require_loadable(state);
  };
  if (impl_->made.zero != nullptr)
    comm::require_everywhere(impl_->comm, check);
  else
    check();
  impl_->optimizer().load_state_dict(state);
  impl_->rates.load(state);
  impl_->steps = steps;
  impl_->watch_anew();
  if (impl_->made.mixed != nullptr)
    impl_->made.mixed->write_params(impl_->params);
}

}  // namespace thinwire::engine
