// SPDX-License-Identifier: Apache-2.0
// The configuration of an Engine with ZeRO.
#pragma once

#include "engine/by_hand.h"

// `test::` means these and what all modules share.
namespace thinwire::test {}
namespace thinwire::engine::test {
using namespace thinwire::test;  // NOLINT(google-build-using-namespace)

/// Buckets that are smaller than some parameters.
inline config::Config zero_config(int stage, DType dtype = DType::kFloat32,
                                  std::int64_t accumulation_steps = 1,
                                  bool managed = true) {
  config::Config config{.optimizer = optimizer_case("adam"),
                        .gradient_accumulation_steps = accumulation_steps,
                        .managed_gradient_accumulation = managed};
  config.precision.dtype = dtype;
  config.precision.loss_scale = {
      .initial_scale = 1024, .window = 2, .hysteresis = 1};
  config.zero.stage = stage;
  config.zero.reduce_bucket_size = 5000;
  return config;
}

}  // namespace thinwire::engine::test
