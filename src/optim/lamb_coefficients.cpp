// SPDX-License-Identifier: Apache-2.0
#include "optim/lamb_coefficients.h"

#include <algorithm>
#include <cmath>

#include "optim/saved_state.h"

namespace thinwire::optim {

LambCoefficients::LambCoefficients(const OnebitLambOptions& options,
                                   std::size_t count)
    : last(count),
      averages(count),
      num_averaged(count),
      last_factors(count, 1),
      beta_(options.coeff_beta),
      factor_max_(options.factor_max),
      factor_min_(options.factor_min),
      factor_threshold_(options.factor_threshold) {}

void LambCoefficients::average(std::size_t i, double trust_ratio) {
  averages[i] = beta_ * averages[i] + (1 - beta_) * trust_ratio;
  ++num_averaged[i];
}

double LambCoefficients::factor(std::size_t i, double drift, double decayed,
                                bool has_decay) {
  double factor = drift;
  if (has_decay) factor = factor * decayed + (1.0 - decayed);
  factor = std::min(factor, factor_max_);
  factor = std::max(factor, factor_min_);
  factor = std::min(factor, last_factors[i] * (1.0 + factor_threshold_));
  factor = std::max(factor, last_factors[i] * (1.0 - factor_threshold_));
  last_factors[i] = factor;
  return factor;
}

double LambCoefficients::corrected_average(std::size_t i) const {
  if (num_averaged[i] == 0) return 1;
  return averages[i] /
         (1 - std::pow(beta_, static_cast<double>(num_averaged[i])));
}

void LambCoefficients::add_to(State& state) const {
  state.add_parameters("lamb_coeffs", last);
  state.add_parameters("lamb_coeff_freeze", averages);
  state.add_parameters("lamb_coeff_count", num_averaged);
  state.add_parameters("last_factor", last_factors);
}

LambCoefficients LambCoefficients::read(const StateDict& state) const {
  const std::size_t count = last.size();
  LambCoefficients read = *this;
  const auto ratios = [&](const char* name) {
    return saved_values<double>(state, name, count, Sign::kNotNegative);
  };
  read.last = ratios("lamb_coeffs");
  read.averages = ratios("lamb_coeff_freeze");
  read.num_averaged =
      saved_values<std::int64_t>(state, "lamb_coeff_count", count);
  for (const std::int64_t averaged : read.num_averaged)
    require_count("lamb_coeff_count", averaged);
  read.last_factors = ratios("last_factor");
  return read;
}

// Added up group by group, as the reference does it.
std::vector<double> common_size_scales(std::span<const double> rms,
                                       const ParameterLayout& layout) {
  const auto parameters = layout.parameters();
  std::vector<double> sums(layout.num_groups());
  double counted = 0;
  for (std::size_t i = 0; i < rms.size(); ++i) {
    sums[parameters[i].group] += rms[i];
    if (rms[i] > 0) ++counted;
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  std::vector<double> scales;
  for (const double own : rms)
    scales.push_back(own > 0 ? total / counted / own : 1);
  return scales;
}

}  // namespace thinwire::optim
