// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/bench/interleave.h"

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "apps/thinwire/bench/quiet.h"

namespace thinwire::apps::bench {

namespace {

double timed(const Variant& variant) {
  if (variant.before) variant.before();
  return seconds_of(variant.run);
}

}  // namespace

double seconds_of(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

Interleaved interleave(std::span<const Variant> variants, int rounds) {
  Interleaved result;
  result.seconds.resize(variants.size());
  for (const Variant& variant : variants) (void)timed(variant);
  for (int round = 0; round < rounds; ++round) {
    if (!wait_until_quiet()) ++result.busy_rounds;
    for (std::size_t i = 0; i < variants.size(); ++i) {
      const std::size_t v =
          (i + static_cast<std::size_t>(round)) % variants.size();
      result.seconds[v].push_back(timed(variants[v]));
    }
  }
  return result;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half]
                                : (values[half - 1] + values[half]) / 2;
}

double median_ratio(std::span<const double> numerator,
                    std::span<const double> denominator) {
  std::vector<double> ratios;
  for (std::size_t r = 0; r < numerator.size(); ++r)
    ratios.push_back(numerator[r] / denominator[r]);
  return median(ratios);
}

}  // namespace thinwire::apps::bench
