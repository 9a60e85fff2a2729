// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

namespace thinwire::apps::bench {

/// Something to be timed, and what has to happen before each time.
struct Variant {
  std::function<void()> run;
  std::function<void()> before{};
};

/// What interleave() measured.
struct Interleaved {
  /// seconds[v][r]: variant v in round r.
  std::vector<std::vector<double>> seconds;
  /// Rounds that began while something else kept the machine busy.
  int busy_rounds = 0;
};

/// Runs every variant once per round, one after the other, beginning with
/// another one in each round; one more round before, which does not count.
[[nodiscard]] Interleaved interleave(std::span<const Variant> variants,
                                     int rounds);

/// Of a non-empty set.
[[nodiscard]] double median(std::vector<double> values);

/// The median over rounds of `numerator` / `denominator`: only times of one
/// round are compared, because the machine's speed changes between rounds.
[[nodiscard]] double median_ratio(std::span<const double> numerator,
                                  std::span<const double> denominator);

}  // namespace thinwire::apps::bench
