// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "thinwire/plan/planner.h"

namespace thinwire::plan {

/// Returns the fastest prediction, by run if runs were planned, otherwise by
/// step. If several are equal, returns the first. An outer loop counts only in
/// runs of 10,000 steps or more. `all` must not be empty.
[[nodiscard]] const Prediction& fastest(std::span<const Prediction> all);

/// Returns text for people: "4 ranks on 2 hosts; card 10 Gbit/s, ...". If hosts
/// have several ranks, the last line describes the links inside a host.
[[nodiscard]] std::string describe(const Network& network);

/// Returns predictions for people: a line per way (milliseconds per step,
/// bytes, rounds, memory per rank, break-even link), and last the fastest. If
/// runs were planned, time and bytes of the whole run come first, and lines are
/// sorted by this time. Lines end in '\n'.
[[nodiscard]] std::string plan_table(std::span<const Prediction> all);

/// Returns predictions for programs, an object per line:
///   way, exchange ("flat" or "by_host"), ms_per_step, bytes_sent,
///   bytes_between_hosts, messages, rounds, memory_bytes, break_even_gbps
/// break_even_gbps is null above 1 Tbit/s. The last line is {"fastest": ...,
/// "exchange": ..., "has_spare_core": ...}. If runs were planned, each way also
/// has run_seconds, run_bytes_sent, warmup_bits and run_steps, {"exact": ...,
/// "compressed": ..., "local": ...}. Lines are then in the order of
/// run_seconds.
[[nodiscard]] std::string plan_json(std::span<const Prediction> all);

}  // namespace thinwire::plan
