// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/adam.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "optim/exact_exchange.h"
#include "optim/require.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/adam.h"

namespace thinwire::optim {

namespace {

AdamOptions with_group(AdamOptions options, const AdamGroup& group) {
  options.learning_rate = group.learning_rate.value_or(options.learning_rate);
  options.beta1 = group.beta1.value_or(options.beta1);
  options.beta2 = group.beta2.value_or(options.beta2);
  options.epsilon = group.epsilon.value_or(options.epsilon);
  options.weight_decay = group.weight_decay.value_or(options.weight_decay);
  options.groups.clear();
  return options;
}

void validate_numbers(const AdamOptions& o) {
  require_learning_rate(o.learning_rate);
  require(o.beta1 >= 0 && o.beta1 < 1, "beta1", "in [0, 1)", o.beta1);
  require(o.beta2 >= 0 && o.beta2 < 1, "beta2", "in [0, 1)", o.beta2);
  require(std::isfinite(o.epsilon) && o.epsilon > 0, "epsilon",
          "finite and > 0", o.epsilon);
  require(std::isfinite(o.weight_decay) && o.weight_decay >= 0, "weight_decay",
          "finite and >= 0", o.weight_decay);
}

}  // namespace

void AdamOptions::validate(std::size_t num_groups) const {
  validate_numbers(*this);
  require(groups.empty() || groups.size() == num_groups, "groups",
          fmt::format("empty or {} entries, one per group of the layout",
                      num_groups),
          fmt::format("{} entries", groups.size()));
  for (const AdamGroup& group : groups)
    validate_numbers(with_group(*this, group));
}

Adam::Adam(ParameterLayout layout, AdamOptions options)
    : layout_(std::move(layout)), options_(std::move(options)) {
  options_.validate(layout_.num_groups());
  if (options_.groups.empty()) options_.groups.resize(layout_.num_groups());
  for (std::size_t g = 0; g < num_groups(); ++g)
    learning_rates_.push_back(group_options(g).learning_rate);
  exp_avg_ = Buffer::of<float>(layout_.size());
  exp_avg_sq_ = Buffer::of<float>(layout_.size());
}

std::string_view Adam::name() const noexcept { return "adam"; }

const ParameterLayout& Adam::layout() const noexcept { return layout_; }

std::size_t Adam::num_groups() const noexcept { return options_.groups.size(); }

AdamOptions Adam::group_options(std::size_t group) const {
  require_group(group, num_groups());
  return with_group(options_, options_.groups[group]);
}

std::string Adam::describe() const {
  std::string text = fmt::format(
      "adam decoupled_decay={} bias_correction={} epsilon_inside_sqrt={}\n",
      options_.decoupled_decay, options_.bias_correction,
      options_.epsilon_inside_sqrt);
  for (std::size_t g = 0; g < num_groups(); ++g) {
    const AdamOptions o = group_options(g);
    fmt::format_to(std::back_inserter(text),
                   "group {} learning_rate={} beta1={} beta2={} epsilon={} "
                   "weight_decay={}\n",
                   g, learning_rates_[g], o.beta1, o.beta2, o.epsilon,
                   o.weight_decay);
  }
  return text;
}

void Adam::set_learning_rate(std::size_t group, double learning_rate) {
  require_group(group, num_groups());
  require_learning_rate(learning_rate);
  learning_rates_[group] = learning_rate;
}

double Adam::learning_rate(std::size_t group) const {
  require_group(group, num_groups());
  return learning_rates_[group];
}

kernels::AdamCoefficients Adam::coefficients(std::size_t group,
                                             std::int64_t step,
                                             float grad_scale) const {
  const AdamOptions o = group_options(group);
  const auto corrected = [&](double beta) {
    return o.bias_correction
               ? 1 / (1 - std::pow(beta, static_cast<double>(step)))
               : 1.0;
  };
  const auto decay = static_cast<float>(o.weight_decay);
  return {.beta1 = static_cast<float>(o.beta1),
          .one_minus_beta1 = static_cast<float>(1 - o.beta1),
          .beta2 = static_cast<float>(o.beta2),
          .one_minus_beta2 = static_cast<float>(1 - o.beta2),
          .epsilon = static_cast<float>(o.epsilon),
          .epsilon_inside_sqrt = o.epsilon_inside_sqrt,
          .exp_avg_scale = static_cast<float>(corrected(o.beta1)),
          .exp_avg_sq_scale = static_cast<float>(corrected(o.beta2)),
          .l2_decay = o.decoupled_decay ? 0.0f : decay,
          .decoupled_decay = o.decoupled_decay ? decay : 0.0f,
          .minus_learning_rate = static_cast<float>(-learning_rates_[group]),
          .grad_scale = grad_scale};
}

void Adam::apply(std::int64_t step, View params, ConstView grads,
                 float grad_scale, ThreadPool& pool) {
  for_group_ranges(pool, group_ranges(layout_), [&](Range range, std::size_t) {
    apply_range(step, range, params, grads, grad_scale);
  });
}

void Adam::apply_range(std::int64_t step, Range range, View params,
                       ConstView grads, float grad_scale) {
  if (range.size == 0) return;
  const std::size_t group = layout_.parameter_at(range.offset).group;
  const auto at = [&range](Buffer& buffer) {
    return buffer.as<float>().subspan(range.offset, range.size).data();
  };
  kernels::adam(
      {.params = params.subview(range.offset, range.size).as<float>().data(),
       .exp_avg = at(exp_avg_),
       .exp_avg_sq = at(exp_avg_sq_),
       .grads = grads.subview(range.offset, range.size)},
      coefficients(group, step, grad_scale));
}

std::vector<double> Adam::learning_rates_in(const StateDict& state) const {
  const auto rates =
      state.array("learning_rates", DType::kFloat64, num_groups()).as<double>();
  for (const double rate : rates)
    if (!std::isfinite(rate) || rate < 0)
      throw Error(ErrorCode::kCorruptCheckpoint,
                  fmt::format("saved learning rate must be finite and >= 0, "
                              "got {}",
                              rate));
  return {rates.begin(), rates.end()};
}

void Adam::save(StateDict& state) const {
  state.put("learning_rates", learning_rates_);
  state.put("exp_avg", exp_avg_.view());
  state.put("exp_avg_sq", exp_avg_sq_.view());
}

void Adam::load(const StateDict& state) {
  const std::size_t n = layout_.size();
  const ConstView m = state.array("exp_avg", DType::kFloat32, n);
  const ConstView v = state.array("exp_avg_sq", DType::kFloat32, n);
  learning_rates_ = learning_rates_in(state);
  if (n == 0) return;
  std::memcpy(exp_avg_.data(), m.data(), m.bytes());
  std::memcpy(exp_avg_sq_.data(), v.data(), v.bytes());
}

}  // namespace thinwire::optim
