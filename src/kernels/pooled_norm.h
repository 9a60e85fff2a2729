// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"

/// Sums of kernels/norm.h, with the same bits, computed by several threads.
namespace thinwire::kernels {

/// Writes one sum per chunk of the grid. `values` begins at a chunk.
void chunk_sums_of_squares(ThreadPool& pool, ConstView values,
                           std::span<double> sums);
[[nodiscard]] double sum_of_squares(ThreadPool& pool, ConstView values);
[[nodiscard]] double sum_of_abs(ThreadPool& pool, ConstView values);

}  // namespace thinwire::kernels
