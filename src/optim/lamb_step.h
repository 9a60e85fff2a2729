// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "thinwire/core/thread_pool.h"
#include "thinwire/optim/lamb.h"

namespace thinwire::optim {

/// The limits of a trust ratio.
struct TrustLimits {
  double min_coeff = 0.01;
  double max_coeff = 10;
};

/// One exact step of LAMB on the moments that `adam` holds. Returns each
/// parameter's ratio.
[[nodiscard]] std::vector<TrustRatio> lamb_step(Adam& adam, std::int64_t step,
                                                const UpdateArrays& arrays,
                                                TrustLimits limits,
                                                ThreadPool& pool);

}  // namespace thinwire::optim
