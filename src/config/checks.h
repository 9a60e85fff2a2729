// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/config/config.h"

namespace thinwire::config {

/// The part of Config::validate() that can be said when a file is read.
void check_without_ranks(const Config& config);

/// Its part for comm.compressed_during_backward.
void check_during_backward(const Config& config);

/// Settings that exclude one another, on so many ranks.
void check_combinations(const Config& config, int world);

}  // namespace thinwire::config
