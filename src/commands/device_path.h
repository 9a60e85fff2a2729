// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "thinwire/plan/planner.h"

namespace thinwire::commands {

/// Rates of the devices of a host, in GB/s. A device has its own link to the
/// host.
struct DeviceRates {
  double memory = 0;
  double between = 0;  // of a device's link to the other devices
  double copies = 0;
  double host_memory = 0;  // shared by all devices of the host
};

/// Returns a table for people with the milliseconds per step that averages of
/// gradients add to forward and backward, for DDP with devices. Each line is
/// one way to average: exactly in bf16, or with ddp_hook() in host memory or on
/// the device. The times are computed from bytes, without any overlap.
[[nodiscard]] std::string device_path(const plan::Workload& work,
                                      const plan::Network& network,
                                      const DeviceRates& rates);

}  // namespace thinwire::commands
