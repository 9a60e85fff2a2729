// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "thinwire/plan/planner.h"

namespace thinwire::commands {

/// Returns the number of cores that this process may use.
[[nodiscard]] int num_cores();

/// Returns the rate of a += b on this machine in GB/s, with two reads and one
/// write per element.
[[nodiscard]] double memory_bandwidth(int num_threads);

/// Returns a line for a model on a device: the cost per step of its path
/// through host memory. It assumes 1-bit Adam on all cores of this machine. It
/// is computed from bytes and the measured rate of host memory. `copies_gbps`
/// is the rate of copies from pinned memory to a device in GB/s, or 0 if none
/// was measured.
[[nodiscard]] std::string host_path(const plan::Workload& work,
                                    double copies_gbps);

}  // namespace thinwire::commands
