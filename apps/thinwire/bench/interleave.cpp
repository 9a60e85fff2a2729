// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/bench/interleave.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

namespace thinwire::apps::bench {

namespace {

constexpr auto kWindow = std::chrono::milliseconds(60);
constexpr auto kPatience = std::chrono::seconds(1);
constexpr double kMostCores = 0.08;

// Returns the seconds that all cores together have spent at work.
std::optional<double> busy_seconds() {
  std::ifstream file("/proc/stat");
  std::string label;
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0;
  file >> label >> user >> nice >> system >> idle >> wait >> irq >> soft;
  if (!file || label != "cpu") return std::nullopt;
  return (user + nice + system + irq + soft) /
         static_cast<double>(sysconf(_SC_CLK_TCK));
}

// Waits until everything else on this machine has used less than 8 % of one
// core over 60 ms, for at most a second. Returns false if this did not happen,
// or if the system does not report its load.
bool wait_until_quiet() {
  using Clock = std::chrono::steady_clock;
  const auto give_up = Clock::now() + kPatience;
  do {
    const auto begin = Clock::now();
    const auto before = busy_seconds();
    std::this_thread::sleep_for(kWindow);
    const auto after = busy_seconds();
    if (!before || !after) return false;
    const std::chrono::duration<double> passed = Clock::now() - begin;
    if ((*after - *before) / passed.count() < kMostCores) return true;
  } while (Clock::now() < give_up);
  return false;
}

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
