// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "thinwire/engine/planner.h"

namespace thinwire::engine {

/// The fastest of plan()'s, the first of equals; at least one.
[[nodiscard]] const Prediction& fastest(std::span<const Prediction> all);

/// For people: "4 ranks on 2 hosts; card 10 Gbit/s, ...", a second line about
/// the inside of hosts of several ranks.
[[nodiscard]] std::string describe(const Network& network);
/// "ns per element: encode 0.40, ...", a line.
[[nodiscard]] std::string describe(const Compute& compute);

/// Predictions for people: a line per way (milliseconds per step, bytes,
/// rounds, memory per rank, break-even link), and last the fastest. Lines end
/// in '\n'.
[[nodiscard]] std::string plan_table(std::span<const Prediction> all);

/// For programs: an object per line, with way, exchange ("flat" or "by_host"),
/// ms_per_step, bytes_sent, bytes_between_hosts, messages, rounds,
/// memory_bytes, break_even_gbps (null: above 1 Tbit/s); and {"fastest": ...,
/// "exchange": ..., "has_spare_core": ...}.
[[nodiscard]] std::string plan_json(std::span<const Prediction> all);

}  // namespace thinwire::engine
