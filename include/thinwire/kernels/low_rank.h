// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "thinwire/core/view.h"

/// Products of a matrix with tall, narrow factors, for averages of low rank
/// (arXiv:1905.13727). M has `rows` rows of `columns` elements, stored row by
/// row. The factors P and Q have `rank` columns, stored column by column. A
/// column of P has `rows` elements, and one of Q has `columns` elements.
///
/// The functions are single-threaded; callers divide rows or columns among
/// threads. An element's bits do not depend on the range in which it is
/// computed. Every operation is rounded in the order given, without fused
/// operations. Arrays do not overlap. Each function throws
/// Error(kInvalidArgument) before it writes anything.
namespace thinwire::kernels {

/// Largest number of columns of a factor. A rank is in [1, kMostLowRank].
inline constexpr std::size_t kMostLowRank = 64;

/// Some rows of M = values * factor + residual, rounded to float twice.
struct LowRankRows {
  ConstView values{};  ///< fp32, fp16 or bf16: rows * columns elements.
  float factor = 1;
  const float* residual = nullptr;  ///< rows * columns elements.
  float* sum = nullptr;             ///< Out: M.
  std::size_t rows = 0;
  std::size_t columns = 0;
};

/// Writes M to `in.sum`. For each of its rows i and each c < rank, also writes
///   p[c * p_stride + i] = sum over j of M[i][j] * q[c * columns + j]
/// Product j, rounded to float, is added to accumulator j mod 16, a float that
/// begins at 0. The accumulators are added as a tree (0+8, 1+9, ... then 0+4,
/// ..., 0+2, 1+3, 0+1). `p_stride` is at least `in.rows`.
void low_rank_rows(const LowRankRows& in, const float* q, std::size_t rank,
                   float* p, std::size_t p_stride);

/// Writes, for the columns j in [begin, end) of M and each c < rank
///   q[c * columns + j] = sum over i of M[i][j] * p[c * rows + i]
/// Products, rounded to float, are added to 0 in the order of the rows. With
/// u = 2^-24, the error is at most about rows * u times the sum of the
/// products' magnitudes. Sixteen accumulators would bound it by a sixteenth of
/// that, but each element of Q would need sixteen registers.
void low_rank_columns(const float* m, std::size_t rows, std::size_t columns,
                      const float* p, std::size_t rank, std::size_t begin,
                      std::size_t end, float* q);

/// Writes `rows` rows of P transpose(Q). For each i and j:
///   out = sum over c of p[c * p_stride + i] * q[c * columns + j]
///   if m is not null:  m[i][j] = m[i][j] - out
///   values[i][j] = out * scale
/// Products, rounded to float, are added to 0 in the order of c. `values` has
/// rows * columns elements of fp32, fp16 or bf16. If `out` is finite but out *
/// scale overflows the dtype of `values`, the largest finite value of its sign
/// is stored. `p_stride` is at least `rows`.
void low_rank_product(const float* p, std::size_t p_stride, const float* q,
                      std::size_t rank, std::size_t rows, std::size_t columns,
                      float* m, float scale, View values);

/// Makes the columns of P orthonormal by modified Gram-Schmidt in double, and
/// rounds them to float once. For each column v, in their order:
///   before = sqrt(v . v)
///   for each earlier column w:  v = v - (w . v) * w
///   after = sqrt(v . v)
///   v = v / after, or 0 if after is 0 or less than before * 2^-40
/// Below that limit only rounding errors are left. Product i of w . v is added
/// to accumulator i mod 16, a double; the accumulators are added as in
/// low_rank_rows(). A column with a NaN or an infinity, and the columns after
/// it, are not finite. Returns a mask of the columns that became 0: bit c is
/// column c.
[[nodiscard]] std::uint64_t orthonormalize(float* p, std::size_t rows,
                                           std::size_t rank);

namespace ref {
void low_rank_rows(const LowRankRows& in, const float* q, std::size_t rank,
                   float* p, std::size_t p_stride);
void low_rank_columns(const float* m, std::size_t rows, std::size_t columns,
                      const float* p, std::size_t rank, std::size_t begin,
                      std::size_t end, float* q);
void low_rank_product(const float* p, std::size_t p_stride, const float* q,
                      std::size_t rank, std::size_t rows, std::size_t columns,
                      float* m, float scale, View values);
[[nodiscard]] std::uint64_t orthonormalize(float* p, std::size_t rows,
                                           std::size_t rank);
}  // namespace ref

}  // namespace thinwire::kernels
