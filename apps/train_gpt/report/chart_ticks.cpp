// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "apps/train_gpt/report/chart.h"

namespace thinwire::train_gpt {
namespace {

std::vector<double> linear_ticks(double low, double high) {
  constexpr double kWanted = 5;
  const double rough = (high - low) / kWanted;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double lead = rough / power;
  const double step = power * (lead <= 1   ? 1
                               : lead <= 2 ? 2
                               : lead <= 5 ? 5
                                           : 10);
  std::vector<double> values;
  // The slack keeps rounding from adding one more at either end.
  for (double i = std::floor(low / step + 1e-9); i < high / step + 1 - 1e-9;
       ++i) {
    values.push_back(i * step);
  }
  return values;
}

std::vector<double> logarithmic_ticks(double low, double high) {
  const double first = std::floor(std::log10(low));
  const double last = std::ceil(std::log10(high));
  const bool is_short = last - first <= 2;
  std::vector<double> values;
  for (double decade = first; decade <= last; ++decade) {
    for (const double lead : {1.0, 2.0, 5.0}) {
      if (lead > 1 && (!is_short || decade == last)) continue;
      values.push_back(lead * std::pow(10, decade));
    }
  }
  return values;
}

}  // namespace

std::vector<double> ticks(double low, double high, bool logarithmic) {
  if (!(low < high)) return {low};
  return logarithmic ? logarithmic_ticks(low, high) : linear_ticks(low, high);
}

}  // namespace thinwire::train_gpt
