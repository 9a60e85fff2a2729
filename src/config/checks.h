// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/config/config.h"

namespace thinwire::config {

/// The part of Config::validate() that can be said when a file is read.
void check_without_ranks(const Config& config);

}  // namespace thinwire::config
