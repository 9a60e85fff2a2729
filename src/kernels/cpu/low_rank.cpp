// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/low_rank.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/low_rank.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

/// Vectors that hold sixteen accumulators.
inline constexpr std::size_t kVectors = 16 / kLanes;

/// Columns of a factor that a loop multiplies at once, and rows of M: so many
/// accumulators fit in the registers, which are 32 with AVX-512, otherwise 16.
inline constexpr std::size_t kFactorColumns = kLanes == 16 ? 8 : 4;
inline constexpr std::size_t kDotRows = kLanes == 16 ? 2 : 1;
#ifndef X_DOTROWS
#define X_CHUNK 2048
#define X_COLROWS 8
#define X_PRODROWS 4
#define X_PRODVEC 2
#endif
inline constexpr std::size_t kDotChunk = X_CHUNK;
inline constexpr std::size_t kSumRows = X_COLROWS;
inline constexpr std::size_t kSumChunk_ = X_CHUNK;
inline constexpr std::size_t kProductRows = X_PRODROWS;
inline constexpr std::size_t kProductVectors = X_PRODVEC;

/// Calls body.template operator()<n>(first) for groups of n columns.
template <std::size_t kColumns, class Body>
HWY_INLINE void for_column_groups(std::size_t first, std::size_t rank,
                                  const Body& body) {
  for (; first + kColumns <= rank; first += kColumns)
    body.template run<kColumns>(first);
  if constexpr (kColumns > 1)
    for_column_groups<kColumns / 2>(first, rank, body);
}

// ------------------------------------------------------------- rows of M * Q
/// Adds products of some elements of rows of M and of columns of Q to their
/// accumulators.
template <std::size_t kRows>
struct DotGroup {
  template <std::size_t kColumns>
  HWY_INLINE void run(std::size_t first) const {
    const Float d;
    hn::Vec<Float> sums[kRows][kColumns][kVectors];
    float* const to = parts + first * 16;
    for (std::size_t r = 0; r < kRows; ++r)
      for (std::size_t c = 0; c < kColumns; ++c)
        for (std::size_t v = 0; v < kVectors; ++v)
          sums[r][c][v] = hn::LoadU(d, to + (r * rank + c) * 16 + v * kLanes);
    const float* const columns = q + first * q_stride;
    for (std::size_t j = 0; j < size; j += 16) {
      for (std::size_t v = 0; v < kVectors; ++v) {
        hn::Vec<Float> x[kRows];
        for (std::size_t r = 0; r < kRows; ++r)
          x[r] = hn::LoadU(d, m + r * m_stride + j + v * kLanes);
        for (std::size_t c = 0; c < kColumns; ++c) {
          const auto y = hn::LoadU(d, columns + c * q_stride + j + v * kLanes);
          for (std::size_t r = 0; r < kRows; ++r)
            sums[r][c][v] = hn::Add(sums[r][c][v], hn::Mul(x[r], y));
        }
      }
    }
    for (std::size_t r = 0; r < kRows; ++r)
      for (std::size_t c = 0; c < kColumns; ++c)
        for (std::size_t v = 0; v < kVectors; ++v)
          hn::StoreU(sums[r][c][v], d, to + (r * rank + c) * 16 + v * kLanes);
  }

  const float* m;
  std::size_t m_stride;
  const float* q;
  std::size_t q_stride;
  std::size_t size;  // A multiple of 16.
  std::size_t rank;
  float* parts;
};

template <class T>
struct SumStep {
  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(values + i, count);
    prefetch_ahead(residual + i, count);
    prefetch_ahead(sum + i, count);
  }

  template <class D>
  HWY_INLINE void operator()(D d, std::size_t i) const {
    const auto scaled = hn::Mul(load(d, values + i), hn::Set(d, factor));
    store(d, hn::Add(scaled, load(d, residual + i)), sum + i);
  }

  const T* values;
  float factor;
  const float* residual;
  float* sum;
};

inline float folded(float* parts) {
  for (std::size_t half = 8; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) parts[k] += parts[k + half];
  return parts[0];
}

/// Copies the last `size` < 16 elements of `count` rows, and zeros after them.
inline void copy_rest(const float* from, std::size_t stride, std::size_t count,
                      std::size_t size, float* to) {
  for (std::size_t r = 0; r < count; ++r) {
    std::fill_n(to + r * 16, 16, 0.0f);
    std::copy_n(from + r * stride, size, to + r * 16);
  }
}

struct RowsOfP {
  template <std::size_t kRows>
  HWY_INLINE void run(std::size_t i) {
    std::fill_n(parts, kRows * rank * 16, 0.0f);
    const float* const m = sum + i * columns;
    const std::size_t whole = columns / 16 * 16;
    for (std::size_t j = 0; j < whole; j += kDotChunk) {
      const DotGroup<kRows> group{
          m + j, columns, q + j, columns, std::min(kDotChunk, whole - j),
          rank,  parts};
      for_column_groups<kFactorColumns>(0, rank, group);
    }
    if (whole < columns) {
      alignas(64) float m_rest[kRows * 16];
      copy_rest(m + whole, columns, kRows, columns - whole, m_rest);
      const DotGroup<kRows> group{m_rest, 16, q_rest, 16, 16, rank, parts};
      for_column_groups<kFactorColumns>(0, rank, group);
    }
    for (std::size_t r = 0; r < kRows; ++r)
      for (std::size_t c = 0; c < rank; ++c)
        p[c * p_stride + i + r] = folded(parts + (r * rank + c) * 16);
  }

  const float* sum;
  std::size_t columns;
  const float* q;
  std::size_t rank;
  float* p;
  std::size_t p_stride;
  alignas(64) float q_rest[kMostLowRank * 16];
  alignas(64) float parts[kDotRows * kMostLowRank * 16];
};

template <class T>
void rows_as(const LowRankRows& in, const T* values, RowsOfP& work) {
  const std::size_t columns = in.columns;
  const auto form = [&](std::size_t i, std::size_t rows) HWY_ATTR {
    for_each_vector(rows * columns, SumStep<T>{values + i * columns, in.factor,
                                               in.residual + i * columns,
                                               in.sum + i * columns});
  };
  std::size_t i = 0;
  for (; i + kDotRows <= in.rows; i += kDotRows) {
    form(i, kDotRows);
    work.run<kDotRows>(i);
  }
  for (; i < in.rows; ++i) {
    form(i, 1);
    work.run<1>(i);
  }
}

void run_low_rank_rows(const LowRankRows& in, const float* q, std::size_t rank,
                       float* p, std::size_t p_stride) {
  RowsOfP work;
  work.sum = in.sum;
  work.columns = in.columns;
  work.q = q;
  work.rank = rank;
  work.p = p;
  work.p_stride = p_stride;
  const std::size_t whole = in.columns / 16 * 16;
  copy_rest(q + whole, in.columns, rank, in.columns - whole, work.q_rest);
  visit_floats(in.values,
               [&]<class T>(const T* values) { rows_as<T>(in, values, work); });
}

// --------------------------------------------------- columns of M^T * P
template <std::size_t kRows>
struct ColumnGroup {
  template <std::size_t kColumns>
  HWY_INLINE void run(std::size_t first) const {
    std::size_t j = begin;
    for (; j + kLanes <= end; j += kLanes) add<kColumns>(Float(), first, j);
    for (; j < end; ++j) add<kColumns>(OneFloat(), first, j);
  }

  template <std::size_t kColumns, class D>
  HWY_INLINE void add(D d, std::size_t first, std::size_t j) const {
    hn::Vec<D> sums[kColumns];
    for (std::size_t c = 0; c < kColumns; ++c)
      sums[c] = hn::LoadU(d, q + (first + c) * columns + j);
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto x = hn::LoadU(d, m + r * columns + j);
      for (std::size_t c = 0; c < kColumns; ++c) {
        const auto y = hn::Set(d, p[(first + c) * kRows + r]);
        sums[c] = hn::Add(sums[c], hn::Mul(x, y));
      }
    }
    for (std::size_t c = 0; c < kColumns; ++c)
      hn::StoreU(sums[c], d, q + (first + c) * columns + j);
  }

  const float* m;
  std::size_t columns;
  const float* p;  // kRows for each column of P
  std::size_t begin;
  std::size_t end;
  float* q;
};

template <std::size_t kRows>
HWY_INLINE void add_rows(const float* m, std::size_t rows, std::size_t columns,
                         const float* p, std::size_t rank, std::size_t begin,
                         std::size_t end, float* q, std::size_t i) {
  float part[kMostLowRank * kRows];
  for (std::size_t c = 0; c < rank; ++c)
    for (std::size_t r = 0; r < kRows; ++r)
      part[c * kRows + r] = p[c * rows + i + r];
  for (std::size_t j = begin; j < end; j += kSumChunk_)
    for_column_groups<kFactorColumns>(
        0, rank,
        ColumnGroup<kRows>{m + i * columns, columns, part, j,
                           std::min(end, j + kSumChunk_), q});
}

void run_low_rank_columns(const float* m, std::size_t rows, std::size_t columns,
                          const float* p, std::size_t rank, std::size_t begin,
                          std::size_t end, float* q) {
  for (std::size_t c = 0; c < rank; ++c)
    std::fill(q + c * columns + begin, q + c * columns + end, 0.0f);
  std::size_t i = 0;
  for (; i + kSumRows <= rows; i += kSumRows)
    add_rows<kSumRows>(m, rows, columns, p, rank, begin, end, q, i);
  for (; i < rows; ++i)
    add_rows<1>(m, rows, columns, p, rank, begin, end, q, i);
}

// ---------------------------------------------------------------- P * Q^T
template <std::size_t kRows, class T>
struct ProductStep {
  template <class D, std::size_t kN>
  HWY_INLINE void run(D d, std::size_t j) const {
    hn::Vec<D> sums[kRows][kN];
    for (auto& row : sums)
      for (auto& sum : row) sum = hn::Zero(d);
    for (std::size_t c = 0; c < rank; ++c) {
      hn::Vec<D> y[kN];
      for (std::size_t v = 0; v < kN; ++v)
        y[v] = hn::LoadU(d, q + c * columns + j + v * hn::Lanes(d));
      for (std::size_t r = 0; r < kRows; ++r) {
        const auto x = hn::Set(d, p[c * kRows + r]);
        for (std::size_t v = 0; v < kN; ++v)
          sums[r][v] = hn::Add(sums[r][v], hn::Mul(x, y[v]));
      }
    }
    for (std::size_t r = 0; r < kRows; ++r)
      for (std::size_t v = 0; v < kN; ++v) {
        const std::size_t at = r * columns + j + v * hn::Lanes(d);
        const auto out = sums[r][v];
        if (m != nullptr)
          hn::StoreU(hn::Sub(hn::LoadU(d, m + at), out), d, m + at);
        auto scaled = hn::Mul(out, hn::Set(d, scale));
        const auto limit = hn::Set(d, most);
        const auto clamped = hn::Min(hn::Max(scaled, hn::Neg(limit)), limit);
        scaled = hn::IfThenElse(hn::IsFinite(scaled), clamped, scaled);
        store(d, scaled, values + at);
      }
  }

  const float* p;
  const float* q;
  std::size_t rank;
  std::size_t columns;
  float* m;
  float scale;
  float most;
  T* values;
};

template <std::size_t kRows, class T>
HWY_INLINE void product_rows(const float* p, std::size_t p_stride,
                             const float* q, std::size_t rank, std::size_t i,
                             std::size_t columns, float* m, float scale,
                             T* values) {
  float part[kMostLowRank * kRows];
  for (std::size_t c = 0; c < rank; ++c)
    for (std::size_t r = 0; r < kRows; ++r)
      part[c * kRows + r] = p[c * p_stride + i + r];
  const ProductStep<kRows, T> step{part,
                                   q,
                                   rank,
                                   columns,
                                   m == nullptr ? m : m + i * columns,
                                   scale,
                                   largest_finite(dtype_of<T>),
                                   values + i * columns};
  std::size_t j = 0;
  for (; j + kProductVectors * kLanes <= columns; j += kProductVectors * kLanes)
    step.template run<Float, kProductVectors>(Float(), j);
  for (; j < columns; ++j) step.template run<OneFloat, 1>(OneFloat(), j);
}

template <class T>
void product_as(const float* p, std::size_t p_stride, const float* q,
                std::size_t rank, std::size_t rows, std::size_t columns,
                float* m, float scale, T* values) {
  std::size_t i = 0;
  for (; i + kProductRows <= rows; i += kProductRows)
    product_rows<kProductRows>(p, p_stride, q, rank, i, columns, m, scale,
                               values);
  for (; i < rows; ++i)
    product_rows<1>(p, p_stride, q, rank, i, columns, m, scale, values);
}

void run_low_rank_product(const float* p, std::size_t p_stride, const float* q,
                          std::size_t rank, std::size_t rows,
                          std::size_t columns, float* m, float scale,
                          View values) {
  visit_floats(values, [&]<class T>(T* to) {
    product_as<T>(p, p_stride, q, rank, rows, columns, m, scale, to);
  });
}

// ---------------------------------------------------------- Gram-Schmidt
using Double = hn::CappedTag<double, 16>;
using OneDouble = hn::CappedTag<double, 1>;
inline constexpr std::size_t kDoubles = hn::MaxLanes(Double());

inline double dot(const double* a, const double* b, std::size_t size) {
  const Double d;
  constexpr std::size_t kN = 16 / kDoubles;
  hn::Vec<Double> sums[kN];
  for (auto& sum : sums) sum = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 16 <= size; i += 16)
    for (std::size_t v = 0; v < kN; ++v)
      sums[v] = hn::Add(sums[v], hn::Mul(hn::LoadU(d, a + i + v * kDoubles),
                                         hn::LoadU(d, b + i + v * kDoubles)));
  alignas(64) double parts[16];
  for (std::size_t v = 0; v < kN; ++v)
    hn::Store(sums[v], d, parts + v * kDoubles);
  for (std::size_t k = 0; i + k < size; ++k) {
    const OneDouble one;
    hn::StoreU(
        hn::Add(hn::LoadU(one, parts + k),
                hn::Mul(hn::LoadU(one, a + i + k), hn::LoadU(one, b + i + k))),
        one, parts + k);
  }
  for (std::size_t half = 8; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) parts[k] += parts[k + half];
  return parts[0];
}

template <class D>
HWY_INLINE void subtract(D d, double along, const double* w, double* v) {
  hn::StoreU(
      hn::Sub(hn::LoadU(d, v), hn::Mul(hn::Set(d, along), hn::LoadU(d, w))), d,
      v);
}

inline void subtract_part(double along, const double* w, double* v,
                          std::size_t size) {
  std::size_t i = 0;
  for (; i + kDoubles <= size; i += kDoubles)
    subtract(Double(), along, w + i, v + i);
  for (; i < size; ++i) subtract(OneDouble(), along, w + i, v + i);
}

std::uint64_t run_orthonormalize(float* p, std::size_t rows, std::size_t rank) {
  std::vector<double> columns(p, p + rows * rank);
  std::uint64_t zeroed = 0;
  for (std::size_t c = 0; c < rank; ++c) {
    double* const v = columns.data() + c * rows;
    const double before = std::sqrt(dot(v, v, rows));
    for (std::size_t k = 0; k < c; ++k) {
      const double* const w = columns.data() + k * rows;
      subtract_part(dot(w, v, rows), w, v, rows);
    }
    const double after = std::sqrt(dot(v, v, rows));
    const bool is_zero = after == 0 || after < before * 0x1p-40;
    if (is_zero) zeroed |= std::uint64_t{1} << c;
    for (std::size_t i = 0; i < rows; ++i) v[i] = is_zero ? 0.0 : v[i] / after;
  }
  for (std::size_t i = 0; i < rows * rank; ++i)
    p[i] = static_cast<float>(columns[i]);
  return zeroed;
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_low_rank_rows);
HWY_EXPORT(run_low_rank_columns);
HWY_EXPORT(run_low_rank_product);
HWY_EXPORT(run_orthonormalize);

void low_rank_rows(const LowRankRows& in, const float* q, std::size_t rank,
                   float* p, std::size_t p_stride) {
  require_low_rank_rows(in, rank, p_stride);
  THINWIRE_DISPATCH(run_low_rank_rows)(in, q, rank, p, p_stride);
}

void low_rank_columns(const float* m, std::size_t rows, std::size_t columns,
                      const float* p, std::size_t rank, std::size_t begin,
                      std::size_t end, float* q) {
  require_low_rank_columns(columns, rank, begin, end);
  THINWIRE_DISPATCH(run_low_rank_columns)
  (m, rows, columns, p, rank, begin, end, q);
}

void low_rank_product(const float* p, std::size_t p_stride, const float* q,
                      std::size_t rank, std::size_t rows, std::size_t columns,
                      float* m, float scale, View values) {
  require_low_rank_product(p_stride, rank, rows, columns, values);
  THINWIRE_DISPATCH(run_low_rank_product)
  (p, p_stride, q, rank, rows, columns, m, scale, values);
}

std::uint64_t orthonormalize(float* p, std::size_t rows, std::size_t rank) {
  require_low_rank(rank);
  return THINWIRE_DISPATCH(run_orthonormalize)(p, rows, rank);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
