// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "thinwire/plan/planner.h"

namespace thinwire::commands {

/// Rates of the devices of a host, in GB/s. A device has its own link to the
/// host.
struct DeviceRates {
  double memory = 0;
  double between = 0;  // of a device's link to the others of its host
  double copies = 0;
  double host_memory = 0;  // which all devices of the host share
};

/// Returns a table for people: milliseconds per step that averages of gradients
/// add to forward and backward, for DDP with devices. Lines are ways: exact in
/// bf16, and ddp_hook() in host memory and on the device. All are computed from
/// bytes, and as if no part overlapped another.
[[nodiscard]] std::string device_path(const plan::Workload& work,
                                      const plan::Network& network,
                                      const DeviceRates& rates);

}  // namespace thinwire::commands
