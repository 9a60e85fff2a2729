// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "thinwire/plan/planner.h"

namespace thinwire::commands {

/// Returns the number of cores that this process may use.
[[nodiscard]] int num_cores();

/// Returns GB/s of a += b on this machine: two reads and one write per element.
[[nodiscard]] double memory_bandwidth(int num_threads);

/// Returns a line on a model on a device: what its way through host memory
/// costs per step on this machine, with 1-bit Adam and all cores. Computed from
/// bytes and from the measured rate of host memory. `copies_gbps` is the rate
/// of copies from pinned memory to a device in GB/s, or 0 if none was measured.
[[nodiscard]] std::string host_path(const plan::Workload& work,
                                    double copies_gbps);

}  // namespace thinwire::commands
