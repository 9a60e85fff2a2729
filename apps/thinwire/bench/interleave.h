// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

namespace thinwire::apps::bench {

/// A function to time, and another one to call before each time.
struct Variant {
  std::function<void()> run;
  std::function<void()> before{};
};

/// The times that interleave() measured.
struct Interleaved {
  /// Seconds of variant v in round r, as seconds[v][r].
  std::vector<std::vector<double>> seconds;
  /// Rounds that began while something else kept the machine busy.
  int busy_rounds = 0;
};

[[nodiscard]] double seconds_of(const std::function<void()>& body);

/// Runs every variant once per round, one after the other. Each round begins
/// with another variant. One more round runs first and does not count.
[[nodiscard]] Interleaved interleave(std::span<const Variant> variants,
                                     int rounds);

/// Returns the median of a non-empty set.
[[nodiscard]] double median(std::vector<double> values);

/// Returns the median over rounds of `numerator` / `denominator`. It compares
/// only times of one round, because the machine's speed changes between rounds.
[[nodiscard]] double median_ratio(std::span<const double> numerator,
                                  std::span<const double> denominator);

}  // namespace thinwire::apps::bench
