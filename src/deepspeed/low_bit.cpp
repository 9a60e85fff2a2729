// SPDX-License-Identifier: Apache-2.0
#include "deepspeed/low_bit.h"

#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "core/require.h"
#include "deepspeed/own_state.h"
#include "exchange/exact_average.h"
#include "kernels/pooled_norm.h"
#include "optim/checks.h"
#include "optim/saved_state.h"
#include "optim/verification.h"
#include "thinwire/comm/agreement.h"

namespace thinwire::deepspeed {

using optim::GroupRange;
using optim::StepInput;
using optim::StepMeter;
using optim::StepReport;

namespace {

constexpr const char* kWorkerError = "worker_error";
constexpr const char* kServerError = "server_error";
// Marks states whose residuals are in the order of worker_error(). States of
// version 0.8 lack this mark.
constexpr const char* kOrder = "residual_order";

}  // namespace

bool LowBitOptimizer::Impl::is_file_of_reference(const StateDict& state) const {
  const bool is_lamb = model.settings.name.ends_with("lamb");
  return state.text("optimizer") == (is_lamb ? "lamb" : "adam");
}

comm::Communicator& LowBitOptimizer::Impl::flat(comm::Communicator& comm) {
  require(comm.hosts().is_flat(), "ranks_per_host",
          "1 with deepspeed semantics, whose exchanges are flat",
          comm.hosts().ranks_per_host);
  return comm;
}

StepReport LowBitOptimizer::Impl::step(const StepInput& in, bool averaged) {
  StepReport report{.phase = progress().phase, .loss_scale = in.loss_scale};
  {
    StepMeter meter(model.comm, report);
    ++steps;
    take_step(in, averaged, meter);
    initialized = true;
    verify(in.params);
  }
  return report;
}

void LowBitOptimizer::Impl::verify(View params) {
  const std::int64_t every = model.settings.exchange.verify_every;
  if (every == 0 || steps % every != 0) return;
  optim::verify_same(model.comm, model.pool, adam().layout(), params,
                     "step " + std::to_string(steps) + '\n' +
                         model.settings.describe() + adam().describe());
}

float LowBitOptimizer::Impl::average(const StepInput& in, bool averaged,
                                     StepMeter& step) {
  double divisor = in.loss_scale;
  if (!averaged) {
    sum(in.grads, step);
    divisor *= exchange::sum_divisor(model.comm, in.grads.dtype());
  }
  step.report().grad_norm =
      std::sqrt(kernels::sum_of_squares(model.pool, in.grads)) / divisor;
  return static_cast<float>(1.0 / divisor);
}

void LowBitOptimizer::Impl::sum(View values, StepMeter& step) {
  const Range whole{0, values.size()};
  step.wait_for(exchange::queue_sums(model.comm, values, {&whole, 1},
                                     model.settings.exchange.bucket_elements));
}

CompressedAllReduce& LowBitOptimizer::Impl::exchange() {
  if (!exchange_) {
    exchange_ = std::make_unique<CompressedAllReduce>(model.comm, units);
    exchange_->set_observer(model.observer);
  }
  return *exchange_;
}

void LowBitOptimizer::Impl::multiply_by_mask(std::span<float> values,
                                             Range range) const {
  const std::span<const float> mask = model.masks.values();
  if (mask.empty()) return;
  for (std::size_t i = range.offset; i < range.end(); ++i) values[i] *= mask[i];
}

void LowBitOptimizer::Impl::make_denominator(std::span<const GroupRange> which,
                                             Buffer& denominator) {
  const float* const v = adam().exp_avg_sq().as<float>().data();
  float* const d = denominator.as<float>().data();
  for (const GroupRange& r : which)
    kernels::denominator(v + r.range.offset, d + r.range.offset, r.range.size,
                         adam().coefficients(r.group, steps, 1));
}

optim::State LowBitOptimizer::Impl::state() const {
  const optim::Adam& adam = model.adam;
  optim::State state;
  state.common.put_text("optimizer", model.settings.name);
  state.common.put_integer("step", steps);
  state.add_groups("learning_rates", adam.learning_rates());
  state.add_free("exp_avg", adam.exp_avg().view().subview(0, model.size()));
  state.add_free("exp_avg_sq", adam.exp_avg_sq().view());
  if (exchange_) {
    state.common.put_integer(kOrder, 1);
    state.add_free(kWorkerError, exchange_->worker_error());
    state.add_free(kServerError, exchange_->server_error());
  }
  add_own(state);
  state.owner = optim::layout_owner(adam.layout());
  return own_state(std::move(state));
}

// States of version 0.8 do not record the order of their residuals, so these
// residuals are dropped, as in version 0.8.
optim::Adoption LowBitOptimizer::Impl::adopt_residuals(StateDict& state,
                                                       bool goes_on) {
  const bool takes_them = goes_on && model.compresses() &&
                          state.has_scalar(kOrder) &&
                          state.has_array(kWorkerError);
  if (!takes_them) return [this] { clear_residuals(); };
  const auto take = [&](const char* name, ConstView own) {
    return std::make_shared<Buffer>(
        optim::take_floats(state, name, DType::kFloat32, own.size()));
  };
  const auto worker = take(kWorkerError, exchange().worker_error());
  const auto server = take(kServerError, exchange().server_error());
  return [this, worker, server] {
    exchange().take_errors(std::move(*worker), std::move(*server));
  };
}

optim::Optimizer::Adoption LowBitOptimizer::Impl::adopt(StateDict state) {
  if (is_file_of_reference(state)) {
    state.put_integer(kForgets, 1);
    complete(state);
  } else {
    optim::require_text(state, "optimizer", model.settings.name);
  }
  const std::vector<Range> all = {{0, model.size()}};
  optim::StateParts parts(state);
  const std::int64_t step = parts.count({"step"}, steps);
  optim::list_learning_rates(parts, adam());
  parts.elements({.name = "exp_avg", .ranges = all}, adam().exp_avg());
  parts.elements(
      {.name = "exp_avg_sq", .ranges = all, .sign = optim::Sign::kNotNegative},
      adam().exp_avg_sq());
  const bool goes_on = !state.has_scalar(kForgets) && is_in_stage_of(state);
  parts.set(initialized, !goes_on || step > 0);
  parts.then(adopt_residuals(state, goes_on));
  parts.then(adopt_own(state, goes_on));
  return [set = parts.adoption()] {
    set();
    return optim::Notes();
  };
}

LowBitOptimizer::LowBitOptimizer(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {
  const optim::LowBitModel& model = impl_->model;
  comm::require_same(model.comm, "parameter layout and options",
                     model.adam.layout().describe() + model.adam.describe() +
                         model.settings.describe());
}

LowBitOptimizer::~LowBitOptimizer() = default;

StepReport LowBitOptimizer::step(const StepInput& input) {
  optim::require_float32_step_input(input, impl_->model.size());
  return impl_->step(input, false);
}

StepReport LowBitOptimizer::step_averaged(const StepInput& input) {
  optim::require_float32_step_input(input, impl_->model.size());
  return impl_->step(input, true);
}

optim::ParameterGroups& LowBitOptimizer::groups() { return impl_->groups; }

optim::Progress LowBitOptimizer::progress() const {
  optim::Progress progress = impl_->progress();
  progress.steps = impl_->steps;
  return progress;
}

optim::State LowBitOptimizer::state() const { return impl_->state(); }

optim::Optimizer::Adoption LowBitOptimizer::adopt(StateDict state) {
  return impl_->adopt(std::move(state));
}

optim::Notes LowBitOptimizer::load_state_dict(const StateDict& state) {
  require_owner(state);
  return adopt(copy_that_forgets(state))();
}

void LowBitOptimizer::require_owner(const StateDict& state) const {
  optim::require_layout(state, impl_->adam().layout());
}

void LowBitOptimizer::set_observer(exchange::WireObserver* observer) noexcept {
  impl_->model.observer = observer;
  if (impl_->exchange_) impl_->exchange_->set_observer(observer);
}

}  // namespace thinwire::deepspeed
