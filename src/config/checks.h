// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/config/config.h"

namespace thinwire::config {

/// The part of Config::validate() that can be said when a file is read.
void check_without_ranks(const Config& config);

/// What comm.compressed_during_backward needs, of the optimizer and of
/// clipping: before others refuse it in words that no file has.
void check_during_backward(const Config& config);
void check_early_clipping(const Config& config);

/// Whether ZeRO adds several backwards up in the residuals of gradients: one
/// that is encoded when it comes cannot wait for another one anywhere else.
bool residuals_add_up(const Config& config, int world);

/// Settings that exclude one another, on so many ranks.
void check_combinations(const Config& config, int world);

}  // namespace thinwire::config
