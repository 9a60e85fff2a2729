// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "optim/auto_freeze.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::optim {

/// The update rule's part of the options, as the semantics honour it.
[[nodiscard]] AdamOptions adam_options(const OnebitAdamOptions& options);
/// The other options, a line for all and one per group.
[[nodiscard]] std::string describe(const OnebitAdamOptions& options);
[[nodiscard]] AutoFreeze auto_freeze(const OnebitAdamOptions& options,
                                     const Adam& adam);

}  // namespace thinwire::optim
