// SPDX-License-Identifier: Apache-2.0
#include "kernels/pooled_norm.h"

#include <algorithm>
#include <vector>

#include "thinwire/kernels/norm.h"

namespace thinwire::kernels {

namespace {

// Size of a thread's piece: whole chunks, small enough to balance threads and
// large enough that scheduling costs nothing.
constexpr std::size_t kGrain = std::size_t{1} << 16;
static_assert(kGrain % kSumChunk == 0);

void sum_pieces(ThreadPool& pool, ConstView values, std::span<double> sums,
                void (*sum)(ConstView, std::span<double>)) {
  pool.for_each((values.size() + kGrain - 1) / kGrain, [&](std::size_t piece) {
    const std::size_t at = piece * kGrain;
    const std::size_t size = std::min(kGrain, values.size() - at);
    sum(values.subview(at, size),
        sums.subspan(at / kSumChunk, sum_chunks(size)));
  });
}

double total(ThreadPool& pool, ConstView values,
             void (*sum)(ConstView, std::span<double>)) {
  std::vector<double> sums(sum_chunks(values.size()));
  sum_pieces(pool, values, sums, sum);
  return sum_of_chunks(sums);
}

}  // namespace

void chunk_sums_of_squares(ThreadPool& pool, ConstView values,
                           std::span<double> sums) {
  sum_pieces(pool, values, sums, chunk_sums_of_squares);
}

double sum_of_squares(ThreadPool& pool, ConstView values) {
  return total(pool, values, chunk_sums_of_squares);
}

double sum_of_abs(ThreadPool& pool, ConstView values) {
  return total(pool, values, chunk_sums_of_abs);
}

}  // namespace thinwire::kernels
