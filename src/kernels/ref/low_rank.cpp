// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/low_rank.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/checks.h"
#include "kernels/ref/floats.h"

namespace thinwire::kernels::ref {
namespace {

/// Returns the sum over i of a[i] * b[i], in sixteen accumulators.
template <class T>
T dot(const T* a, const T* b, std::size_t size) {
  std::array<T, 16> parts{};
  for (std::size_t i = 0; i < size; ++i) {
    const T product = a[i] * b[i];
    parts[i % 16] = parts[i % 16] + product;
  }
  for (std::size_t half = 8; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) parts[k] += parts[k + half];
  return parts[0];
}

/// Returns the sum over i of a[i * a_stride] * b[i * b_stride], in order.
float sum_in_order(const float* a, std::size_t a_stride, const float* b,
                   std::size_t b_stride, std::size_t size) {
  float sum = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const float product = a[i * a_stride] * b[i * b_stride];
    sum = sum + product;
  }
  return sum;
}

/// Returns value * scale, clamped to [-most, most] if `value` is finite.
float scaled(float value, float scale, float most) {
  const float product = value * scale;
  return std::isfinite(value) ? std::clamp(product, -most, most) : product;
}

/// Subtracts the projections of v on the first `count` columns of w.
void subtract_projections(const double* w, std::size_t count, double* v,
                          std::size_t rows) {
  for (std::size_t c = 0; c < count; ++c) {
    const double* const column = w + c * rows;
    const double along = dot(column, v, rows);
    for (std::size_t i = 0; i < rows; ++i) {
      const double part = along * column[i];
      v[i] = v[i] - part;
    }
  }
}

}  // namespace

void low_rank_rows(const LowRankRows& in, const float* q, std::size_t rank,
                   float* p, std::size_t p_stride) {
  require_low_rank_rows(in, rank, p_stride);
  std::copy_n(in.residual, in.rows * in.columns, in.sum);
  add_scaled(View(in.sum, in.rows * in.columns, DType::kFloat32), in.values,
             in.factor);
  for (std::size_t i = 0; i < in.rows; ++i)
    for (std::size_t c = 0; c < rank; ++c)
      p[c * p_stride + i] =
          dot(in.sum + i * in.columns, q + c * in.columns, in.columns);
}

void low_rank_columns(const float* m, std::size_t rows, std::size_t columns,
                      const float* p, std::size_t rank, std::size_t begin,
                      std::size_t end, float* q) {
  require_low_rank_columns(columns, rank, begin, end);
  for (std::size_t c = 0; c < rank; ++c)
    for (std::size_t j = begin; j < end; ++j)
      q[c * columns + j] = sum_in_order(m + j, columns, p + c * rows, 1, rows);
}

void low_rank_product(const float* p, std::size_t p_stride, const float* q,
                      std::size_t rank, std::size_t rows, std::size_t columns,
                      float* m, float scale, View values) {
  require_low_rank_product(p_stride, rank, rows, columns, values);
  const float most = largest_finite(values.dtype());
  visit_floats(values, [&](auto* to) {
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j) {
        const std::size_t at = i * columns + j;
        const float out = sum_in_order(p + i, p_stride, q + j, columns, rank);
        if (m != nullptr) m[at] = m[at] - out;
        store_rounded(scaled(out, scale, most), to + at);
      }
  });
}

std::uint64_t orthonormalize(float* p, std::size_t rows, std::size_t rank) {
  require_low_rank(rank);
  std::vector<double> columns(p, p + rows * rank);
  std::uint64_t zeroed = 0;
  for (std::size_t c = 0; c < rank; ++c) {
    double* const v = columns.data() + c * rows;
    const double before = std::sqrt(dot(v, v, rows));
    subtract_projections(columns.data(), c, v, rows);
    const double after = std::sqrt(dot(v, v, rows));
    const bool is_zero = after == 0 || after < before * 0x1p-40;
    if (is_zero) zeroed |= std::uint64_t{1} << c;
    for (std::size_t i = 0; i < rows; ++i) v[i] = is_zero ? 0.0 : v[i] / after;
  }
  std::transform(columns.begin(), columns.end(), p,
                 [](double value) { return static_cast<float>(value); });
  return zeroed;
}

}  // namespace thinwire::kernels::ref
