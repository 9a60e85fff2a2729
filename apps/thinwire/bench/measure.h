// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "apps/thinwire/bench/interleave.h"
#include "apps/thinwire/bench/result.h"
#include "apps/thinwire/bench/rows.h"

namespace thinwire::apps::bench {

/// Groups adjacent rows that differ only in Row::prefetch. A group is measured
/// in the same rounds and over the same memory.
[[nodiscard]] std::vector<std::vector<const Row*>> in_groups(
    std::span<const Row* const> rows);

/// Measures the rows of one group and their limit in turns, and the limit of
/// reading if they only read. Writes to stderr if something else kept the
/// machine busy.
[[nodiscard]] std::vector<Result> measure(std::span<const Row* const> group,
                                          const Settings& settings);

/// Writes a line to stderr if rounds of this row began on a busy machine.
void say_if_busy(const std::string& row, const Interleaved& measured);

}  // namespace thinwire::apps::bench
