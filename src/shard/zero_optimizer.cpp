// SPDX-License-Identifier: Apache-2.0
#include "thinwire/shard/zero_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "optim/checks.h"
#include "shard/zero_impl.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/error.h"

namespace thinwire::shard {

using optim::Semantics;
using optim::StepInput;
using optim::StepReport;

namespace {

void check_experts(const ParameterLayout& layout, const ZeroOptions& options) {
  std::vector<bool> is_expert(layout.num_groups());
  for (const ExpertGroup& experts : options.experts) {
    require(experts.group < layout.num_groups() && !is_expert[experts.group],
            "experts.group",
            fmt::format("below {} and given once", layout.num_groups()),
            experts.group);
    require(experts.comm != nullptr, "experts.comm", "a communicator", "null");
    is_expert[experts.group] = true;
  }
  require(options.experts.empty() ||
              std::find(is_expert.begin(), is_expert.end(), false) !=
                  is_expert.end(),
          "experts", "fewer than all groups", options.experts.size());
}

}  // namespace

ZeroOptimizer::Impl::Impl(comm::Communicator& c, const ParameterLayout& l,
                          View p, const ZeroOptions& settings)
    : comm(c),
      layout(l),
      params(p),
      options(settings),
      scaler(settings.dtype == DType::kFloat16
                 ? settings.loss_scale
                 : precision::LossScalerOptions{.initial_scale = 1,
                                                .dynamic = false}),
      pool(settings.exchange.num_threads) {}

void ZeroOptimizer::Impl::require_same_array(View grads) const {
  require(early.empty() ||
              (early.data() == grads.data() && early.dtype() == grads.dtype()),
          "grads", "the array that has been reduced in part", "another one");
}

void ZeroOptimizer::Impl::reduce_early(View /*grads*/, Range /*range*/) {
  refuse(
      "reduce_early: gradients of this optimizer are handed over one by one, "
      "or all at once to step()");
}

ZeroOptimizer::ZeroOptimizer(comm::Communicator& comm,
                             const ParameterLayout& layout,
                             const MakeRule& make_rule, View params,
                             const ZeroOptions& options, ConstView initial) {
  options.validate();
  check_experts(layout, options);
  const auto check = [&](std::string_view name, ConstView view, DType dtype) {
    if (view.dtype() != dtype || view.size() != layout.size())
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} must be {} of {} elements, got {} of {}",
                              name, to_string(dtype), layout.size(),
                              to_string(view.dtype()), view.size()));
  };
  check("params", params, options.dtype);
  if (!initial.empty()) check("initial", initial, DType::kFloat32);
  if (make_rule == nullptr)
    throw Error(ErrorCode::kInvalidArgument,
                "make_rule must make an update rule, got none");
  const auto whole = make_rule(
      ParameterLayout::of({}, std::max<std::size_t>(1, layout.num_groups())));
  const std::string rule = whole == nullptr ? "none\n" : whole->describe();
  comm::require_same(comm, "parameter layout and options",
                     layout.describe() + rule + options.describe());
  const auto make = options.semantics == Semantics::kDeepSpeed
                        ? make_reference_zero
                        : make_corrected_zero;
  impl_ = make(comm, layout, make_rule, params, options,
               initial.empty() ? ConstView(params) : initial);
}

ZeroOptimizer::~ZeroOptimizer() = default;

double ZeroOptimizer::loss_scale() const noexcept {
  return impl_->loss_scale();
}

const ZeroOptions& ZeroOptimizer::options() const noexcept {
  return impl_->options;
}

const ShardLayout& ZeroOptimizer::shards() const noexcept {
  return impl_->shards();
}

std::vector<Range> ZeroOptimizer::buckets() const { return impl_->buckets(); }

// ---- gradients one by one

void ZeroOptimizer::begin_backward(Backward which) {
  if (impl_->in_backward) refuse("begin_backward: inside another backward");
  if (impl_->is_complete)
    refuse("begin_backward: the last backward has been; call step() first");
  if (!impl_->early.empty())
    refuse("begin_backward: gradients have come whole; call step() first");
  if (which.is_first == impl_->has_collected)
    refuse(which.is_first
               ? "begin_backward: there was a first backward since step()"
               : "begin_backward: the first backward since step() is missing");
  impl_->begin_backward(which);
  impl_->in_backward = true;
  impl_->has_collected = true;
  impl_->is_complete = which.is_last;
  impl_->collected.assign(impl_->layout.parameters().size(), false);
}

void ZeroOptimizer::collect(std::size_t index, ConstView gradient) {
  const auto parameters = impl_->layout.parameters();
  require(index < parameters.size(), "index",
          fmt::format("below {}", parameters.size()), index);
  if (!impl_->in_backward) refuse("collect: outside of a backward");
  const Parameter& p = parameters[index];
  if (impl_->collected[index])
    refuse(
        fmt::format("collect: '{}' has come before in this backward", p.name));
  const bool fits = gradient.dtype() == impl_->options.dtype ||
                    gradient.dtype() == DType::kFloat32;
  if (!fits || gradient.size() != p.size)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("gradient of '{}' must be float32 or {} of {} "
                            "elements, got {} of {}",
                            p.name, to_string(impl_->options.dtype), p.size,
                            to_string(gradient.dtype()), gradient.size()));
  impl_->collected[index] = true;
  impl_->collect(index, gradient);
}

void ZeroOptimizer::end_backward() {
  if (!impl_->in_backward)
    refuse("end_backward: there was no begin_backward()");
  impl_->end_backward();
  impl_->in_backward = false;
}

void ZeroOptimizer::cancel_backward() {
  if (!impl_->in_backward) return;
  impl_->in_backward = false;
  impl_->has_collected = false;
  impl_->is_complete = false;
  impl_->cancel_backward();
}

ZeroOptimizer::Late ZeroOptimizer::late() const noexcept {
  return impl_->late();
}

// ---- steps

StepReport ZeroOptimizer::step(const StepInput& input) {
  const auto& in = *impl_;
  if (in.in_backward) refuse("step: inside a backward");
  optim::require_view("params", input.params, in.layout.size(), true, true);
  require(input.params.data() == in.params.data() &&
              input.params.dtype() == in.params.dtype(),
          "params", "the memory given at construction", "other memory");
  require(input.low_precision.empty() && !input.averaged, "input",
          "without low_precision and averaged", "with one of them");
  require(std::isfinite(input.loss_scale) && input.loss_scale > 0, "loss_scale",
          "finite and > 0", input.loss_scale);
  if (!in.has_states)
    refuse("step: states are offloaded; call reload_states() first");
  if (input.grads.empty() && !in.has_collected && in.layout.size() > 0)
    refuse("step: there was no backward since the last step");
  if (!input.grads.empty() || !in.has_collected)
    optim::require_view("grads", input.grads, in.layout.size(), true, true);
  if (!input.grads.empty() && in.has_collected)
    refuse("step: gradients were handed over one by one; give no others");
  in.require_same_array(input.grads);
  const auto end = [&] {
    impl_->has_collected = false;
    impl_->is_complete = false;
    impl_->early = {};
  };
  try {
    const StepReport report = impl_->step(input);
    end();
    return report;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNonFinite) end();
    throw;
  }
}

StepReport ZeroOptimizer::step() {
  return step({.params = impl_->params, .grads = {}});
}

void ZeroOptimizer::reduce_early(View grads, Range range) {
  optim::require_view("grads", grads, impl_->layout.size(), true, true);
  if (!reduces_early()) return impl_->Impl::reduce_early(grads, range);
  if (impl_->has_collected)
    refuse("reduce_early: gradients are handed over one by one in this window");
  impl_->require_same_array(grads);
  impl_->reduce_early(grads, range);
  impl_->early = grads;
}

bool ZeroOptimizer::reduces_early() const noexcept {
  return impl_->reduces_early();
}

// ---- the rest

std::int64_t ZeroOptimizer::steps() const noexcept { return impl_->steps; }

std::int64_t ZeroOptimizer::skipped_steps() const noexcept {
  return impl_->skipped;
}

void ZeroOptimizer::set_learning_rate(std::size_t group, double learning_rate) {
  impl_->set_learning_rate(group, learning_rate);
}

double ZeroOptimizer::learning_rate(std::size_t group) const {
  return impl_->learning_rate(group);
}

std::size_t ZeroOptimizer::num_groups() const noexcept {
  return impl_->layout.num_groups();
}

StateDict ZeroOptimizer::state_dict() const {
  StateDict state;
  impl_->save(state);
  state.put_text("layout", impl_->layout.describe());
  state.put_integer("rank", impl_->comm.rank());
  state.put_integer("step", impl_->steps);
  state.put_integer("skipped_steps", impl_->skipped);
  if (impl_->scales()) impl_->scaler.save(state);
  return state;
}

void ZeroOptimizer::load_state_dict(const StateDict& state) {
  precision::LossScaler scaler = impl_->scaler;
  std::int64_t steps = 0;
  std::int64_t skipped = 0;
  comm::require_everywhere(impl_->comm, [&] {
    optim::require_layout(state, impl_->layout);
    if (state.integer("rank") != impl_->comm.rank())
      throw Error(ErrorCode::kCorruptCheckpoint,
                  fmt::format("the state is of rank {}, this is rank {}",
                              state.integer("rank"), impl_->comm.rank()));
    steps = state.integer("step");
    skipped = state.integer("skipped_steps");
    if (impl_->scales()) scaler.load(state);
    impl_->require_fits(state);
  });
  impl_->load(state);
  impl_->scaler = scaler;
  impl_->steps = steps;
  impl_->skipped = skipped;
}

}  // namespace thinwire::shard
