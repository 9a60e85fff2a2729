// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/adam.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "optim/checks.h"
#include "optim/saved_state.h"
#include "optim/state_parts.h"
#include "optim/step_pieces.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/adam.h"
#include "thinwire/kernels/cast.h"

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
  require(static_cast<float>(o.epsilon) > 0, "epsilon",
          "at least 1.4e-45, the smallest fp32 number", o.epsilon);
  require_weight_decay(o.weight_decay);
}

}  // namespace

void AdamOptions::validate(std::size_t num_groups) const {
  validate_numbers(*this);
  require(state_dtype == DType::kFloat32 || is_16_bit(state_dtype),
          "state_dtype", "float32, float16 or bfloat16",
          to_string(state_dtype));
  require(groups.empty() || groups.size() == num_groups, "groups",
          fmt::format("empty or {} entries, one per group of the layout",
                      num_groups),
          fmt::format("{} entries", groups.size()));
  for (const AdamGroup& group : groups)
    validate_numbers(with_group(*this, group));
}

Adam::Adam(ParameterLayout layout, AdamOptions options, Moments moments)
    : layout_(std::move(layout)), options_(std::move(options)) {
  options_.validate(layout_.num_groups());
  if (options_.groups.empty()) options_.groups.resize(layout_.num_groups());
  for (std::size_t g = 0; g < num_groups(); ++g)
    learning_rates_.push_back(group_options(g).learning_rate);
  if (moments == Moments::kNone) return;
  exp_avg_ = Buffer(layout_.size(), options_.state_dtype);
  exp_avg_sq_ = Buffer(layout_.size(), options_.state_dtype);
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
      "adam decoupled_decay={} bias_correction={} epsilon_inside_sqrt={} "
      "state_dtype={}\n",
      options_.decoupled_decay, options_.bias_correction,
      options_.epsilon_inside_sqrt, to_string(options_.state_dtype));
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

void Adam::set_weight_decay(std::size_t group, double weight_decay) {
  require_group(group, num_groups());
  require_weight_decay(weight_decay);
  options_.groups[group].weight_decay = weight_decay;
}

double Adam::weight_decay(std::size_t group) const {
  return group_options(group).weight_decay;
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

void Adam::apply_part(std::int64_t step, Range part, const UpdateArrays& arrays,
                      ThreadPool& pool) {
  require_part(part, arrays, layout_);
  for_group_ranges(
      pool, group_ranges(layout_, part), [&](Range range, std::size_t group) {
        apply_range(range,
                    part_of(arrays, {range.offset - part.offset, range.size}),
                    coefficients(group, step, arrays.grad_scale));
      });
}

void Adam::apply_range(Range range, const UpdateArrays& arrays,
                       const kernels::AdamCoefficients& c) {
  if (arrays.params.dtype() != DType::kFloat32)
    return apply_widened(range, arrays, c);
  const auto at = [&range](Buffer& buffer) {
    return buffer.as<float>().subspan(range.offset, range.size).data();
  };
  kernels::adam({.params = arrays.params.as<float>().data(),
                 .exp_avg = at(exp_avg_),
                 .exp_avg_sq = at(exp_avg_sq_),
                 .grads = arrays.grads,
                 .low_precision = arrays.low_precision},
                c);
}

// Applies the update block by block; as floats, a block fits the first-level
// cache.
void Adam::apply_widened(Range range, const UpdateArrays& arrays,
                         const kernels::AdamCoefficients& c) {
  constexpr std::size_t kBlock = 1024;
  std::array<float, kBlock> p;
  std::array<float, kBlock> m;
  std::array<float, kBlock> v;
  for (std::size_t at = 0; at < range.size; at += kBlock) {
    const std::size_t n = std::min(kBlock, range.size - at);
    const View params = arrays.params.subview(at, n);
    const View exp_avg = exp_avg_.view().subview(range.offset + at, n);
    const View exp_avg_sq = exp_avg_sq_.view().subview(range.offset + at, n);
    kernels::convert(params, std::span(p.data(), n));
    kernels::convert(exp_avg, std::span(m.data(), n));
    kernels::convert(exp_avg_sq, std::span(v.data(), n));
    kernels::adam({.params = p.data(),
                   .exp_avg = m.data(),
                   .exp_avg_sq = v.data(),
                   .grads = arrays.grads.subview(at, n)},
                  c);
    kernels::convert(std::span(p.data(), n), params);
    kernels::convert(std::span(m.data(), n), exp_avg);
    kernels::convert(std::span(v.data(), n), exp_avg_sq);
  }
}

bool Adam::takes(DType params) const noexcept {
  return params == options_.state_dtype ||
         (is_16_bit(params) && options_.state_dtype == DType::kFloat32);
}

View Adam::state(std::string_view key) {
  const bool is_first = key == "exp_avg";
  require(is_first || key == "exp_avg_sq", "key", "exp_avg or exp_avg_sq", key);
  return (is_first ? exp_avg_ : exp_avg_sq_).view();
}

void Adam::add_to(State& state, Sharing sharing,
                  const std::vector<Range>& elements) const {
  state.add_groups("learning_rates", learning_rates_);
  state.add_elements("exp_avg", sharing, elements, exp_avg_.view());
  state.add_elements("exp_avg_sq", sharing, elements, exp_avg_sq_.view());
}

Adoption Adam::adopt(StateDict& state) {
  const auto elements = [&](const char* name, Sign sign) {
    return ArrayPart{.name = name,
                     .ranges = {{0, layout_.size()}},
                     .dtype = options_.state_dtype,
                     .sign = sign};
  };
  StateParts parts(state);
  parts.set(learning_rates_, saved_learning_rates(state, num_groups()));
  parts.elements(elements("exp_avg", Sign::kAny), exp_avg_);
  parts.elements(elements("exp_avg_sq", Sign::kNotNegative), exp_avg_sq_);
  return parts.adoption();
}

}  // namespace thinwire::optim
