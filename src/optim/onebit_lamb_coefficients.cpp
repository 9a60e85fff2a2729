// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include "optim/lamb_step.h"
#include "optim/onebit_lamb_impl.h"

namespace thinwire::optim {

namespace {

template <class T>
std::vector<T> saved(const StateDict& state, std::string_view name, DType dtype,
                     std::size_t size) {
  const auto values = state.array(name, dtype, size).as<T>();
  return {values.begin(), values.end()};
}

}  // namespace

OnebitLambStage::OnebitLambStage(comm::Communicator& c,
                                 const ParameterLayout& layout,
                                 const OnebitLambOptions& o)
    : TwoStage(c, layout, settings_of(o), freeze_options(o)),
      options(o),
      limits(trust_limits(o, layout.num_groups())) {
  const std::size_t count = layout.parameters().size();
  lamb_coeffs.assign(count, 0);
  frozen_coeffs.assign(count, 0);
  coeff_counts.assign(count, 0);
  last_factors.assign(count, 1);
}

void OnebitLambStage::average_coeff(std::size_t i, double ratio) {
  frozen_coeffs[i] =
      options.coeff_beta * frozen_coeffs[i] + (1 - options.coeff_beta) * ratio;
  ++coeff_counts[i];
}

double OnebitLambStage::adapted_coeff(std::size_t i, double drift,
                                      double decayed) {
  double factor = drift;
  if (adam.group_options(adam.layout().parameters()[i].group).weight_decay > 0)
    factor = factor * decayed + (1.0 - decayed);
  factor = std::min(factor, options.factor_max);
  factor = std::max(factor, options.factor_min);
  const double last = last_factors[i];
  factor = std::min(factor, last * (1.0 + options.factor_threshold));
  factor = std::max(factor, last * (1.0 - options.factor_threshold));
  last_factors[i] = factor;

  double coeff = frozen_coeffs[i];
  if (policy.honours_adam_options)
    coeff = coeff_counts[i] == 0
                ? 1
                : coeff / (1 - std::pow(options.coeff_beta,
                                        static_cast<double>(coeff_counts[i])));
  return coeff * factor;
}

void OnebitLambStage::scale_momenta(std::span<const double> rms) {
  // Group by group, as the reference adds them up.
  const auto parameters = adam.layout().parameters();
  std::vector<double> sums(adam.num_groups());
  double counted = 0;
  for (std::size_t i = 0; i < rms.size(); ++i) {
    sums[parameters[i].group] += rms[i];
    if (rms[i] > 0) ++counted;
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  momentum_scales.clear();
  for (const double own : rms)
    momentum_scales.push_back(own > 0 ? total / counted / own : 1);
}

void OnebitLambStage::save_stage(StateDict& state) const {
  state.put("lamb_coeffs", lamb_coeffs);
  state.put("lamb_coeff_freeze", frozen_coeffs);
  state.put("lamb_coeff_count", coeff_counts);
  state.put("last_factor", last_factors);
  if (!momentum_scales.empty()) state.put("scaling_coeff", momentum_scales);
  if (!fresh.empty()) state.put("exp_avg_sq_fresh", fresh.view());
}

LowBitOptimizer::Impl::Commit OnebitLambStage::read_stage(
    const StateDict& state) {
  const std::size_t count = adam.layout().parameters().size();
  auto coeffs = saved<double>(state, "lamb_coeffs", DType::kFloat64, count);
  auto frozen =
      saved<double>(state, "lamb_coeff_freeze", DType::kFloat64, count);
  auto counts =
      saved<std::int64_t>(state, "lamb_coeff_count", DType::kInt64, count);
  auto factors = saved<double>(state, "last_factor", DType::kFloat64, count);
  std::vector<double> scales;
  if (state.has_array("scaling_coeff"))
    scales = saved<double>(state, "scaling_coeff", DType::kFloat64, count);
  auto v = std::make_shared<Buffer>();
  if (state.integer("frozen_at") > 0)
    *v = saved_floats(state, "exp_avg_sq_fresh", adam.layout().size());
  return [=, this] {
    lamb_coeffs = coeffs;
    frozen_coeffs = frozen;
    coeff_counts = counts;
    last_factors = factors;
    momentum_scales = scales;
    fresh = std::move(*v);
  };
}

}  // namespace thinwire::optim
