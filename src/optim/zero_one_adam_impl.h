// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "optim/low_bit.h"
#include "optim/zero_one_schedule.h"
#include "thinwire/optim/zero_one_adam.h"

namespace thinwire::optim {

[[nodiscard]] LowBitSettings settings_of(const ZeroOneAdamOptions& options);

/// The reference's arithmetic: gradients are exchanged before the freeze, decay
/// goes through the accumulator, and a sync leaves rounding behind that differs
/// from rank to rank.
[[nodiscard]] std::unique_ptr<LowBitOptimizer::Impl>
make_deepspeed_zero_one_adam(comm::Communicator& comm,
                             const ParameterLayout& layout,
                             const ZeroOneAdamOptions& options);

}  // namespace thinwire::optim
