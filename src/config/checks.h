// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/config/config.h"

namespace thinwire::config {

/// Makes those checks of Config::validate() that need no number of ranks.
void check_without_ranks(const Config& config);

/// Checks what comm.compressed_under_next_step excludes. It runs before other
/// checks, whose messages do not name keys of a file.
void check_under_next_step(const Config& config);

/// Returns whether ZeRO adds several backwards up in the residuals of
/// gradients. Gradients that are encoded as soon as they arrive cannot be added
/// anywhere else.
bool residuals_add_up(const Config& config, int world);

/// Checks settings that exclude one another on `world` ranks.
void check_combinations(const Config& config, int world);

}  // namespace thinwire::config
