// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/engine/config.h"

namespace thinwire::engine {

/// The part of Config::validate() that can be said when a file is read.
void check_without_ranks(const Config& config);

}  // namespace thinwire::engine
