// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/config/config.h"

namespace thinwire::config {

/// The part of Config::validate() that can be said when a file is read.
void check_without_ranks(const Config& config);

/// Check the requirements of comm.compressed_during_backward on the optimizer
/// and on clipping. They run before other checks, whose messages do not name
/// keys of a file.
void check_during_backward(const Config& config);
/// Check the same of comm.compressed_under_next_step.
void check_under_next_step(const Config& config);
void check_early_clipping(const Config& config);

/// Whether ZeRO adds several backwards up in the residuals of gradients: one
/// that is encoded when it comes cannot wait for another one anywhere else.
bool residuals_add_up(const Config& config, int world);

/// Settings that exclude one another, on so many ranks.
void check_combinations(const Config& config, int world);

}  // namespace thinwire::config
