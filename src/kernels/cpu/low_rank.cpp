// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/low_rank.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/low_rank.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// This stands after foreach_target.h, which includes the file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

/// Number of vectors that hold sixteen accumulators.
inline constexpr std::size_t kVectors = 16 / kLanes;
/// True for AVX-512, which has 32 registers; other targets have 16.
inline constexpr bool kManyRegisters = kLanes == 16;

/// Calls body.run<n>(first) for groups of n columns of a factor. Groups have
/// kColumns columns while enough remain; then n is halved repeatedly.
template <std::size_t kColumns, class Body>
HWY_INLINE void for_column_groups(std::size_t first, std::size_t rank,
                                  const Body& body) {
  for (; first + kColumns <= rank; first += kColumns)
    body.template run<kColumns>(first);
  if constexpr (kColumns > 1)
    for_column_groups<kColumns / 2>(first, rank, body);
}

// ------------------------------------------------------------- rows of M * Q
/// Number of rows of M and columns of Q whose accumulators stay in registers.
inline constexpr std::size_t kDotRows = kManyRegisters ? 6 : 3;
inline constexpr std::size_t kDotColumns = kLanes < 8 ? 1 : kLanes / 4;
/// Number of rows and columns of M that stay in the first-level cache, with
/// their part of Q, while all columns of Q are read.
inline constexpr std::size_t kBlockRows = 12;
inline constexpr std::size_t kBlockColumns = 512;
/// Number of elements of M that stay in the second-level cache until they are
/// multiplied.
inline constexpr std::size_t kFormedElements = 65536;

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

/// Adds products of rows of M and columns of Q to `parts`, which has sixteen
/// accumulators per row and column. `size` is a multiple of 16.
struct DotBlock {
  template <std::size_t kColumns>
  HWY_INLINE void run(std::size_t first) const {
    std::size_t r = 0;
    for (; r + kDotRows <= rows; r += kDotRows)
      add<kDotRows, kColumns>(r, first);
    for (; r < rows; ++r) add<1, kColumns>(r, first);
  }

  template <std::size_t kRows, std::size_t kColumns>
  HWY_INLINE void add(std::size_t row, std::size_t first) const {
    const Float d;
    hn::Vec<Float> sums[kRows][kColumns][kVectors];
    float* const to = parts + (row * rank + first) * 16;
    for (std::size_t r = 0; r < kRows; ++r)
      for (std::size_t c = 0; c < kColumns; ++c)
        for (std::size_t v = 0; v < kVectors; ++v)
          sums[r][c][v] = hn::LoadU(d, to + (r * rank + c) * 16 + v * kLanes);
    const float* const x = m + row * m_stride;
    const float* const y = q + first * q_stride;
    for (std::size_t j = 0; j < size; j += 16)
      for (std::size_t v = 0; v < kVectors; ++v)
        add_vector<kRows, kColumns>(x + j + v * kLanes, y + j + v * kLanes, v,
                                    sums);
    for (std::size_t r = 0; r < kRows; ++r)
      for (std::size_t c = 0; c < kColumns; ++c)
        for (std::size_t v = 0; v < kVectors; ++v)
          hn::StoreU(sums[r][c][v], d, to + (r * rank + c) * 16 + v * kLanes);
  }

  template <std::size_t kRows, std::size_t kColumns>
  HWY_INLINE void add_vector(
      const float* x, const float* y, std::size_t v,
      hn::Vec<Float> (&sums)[kRows][kColumns][kVectors]) const {
    const Float d;
    hn::Vec<Float> of_row[kRows];
    for (std::size_t r = 0; r < kRows; ++r)
      of_row[r] = hn::LoadU(d, x + r * m_stride);
    for (std::size_t c = 0; c < kColumns; ++c) {
      const auto of_column = hn::LoadU(d, y + c * q_stride);
      for (std::size_t r = 0; r < kRows; ++r)
        sums[r][c][v] = hn::Add(sums[r][c][v], hn::Mul(of_row[r], of_column));
    }
  }

  const float* m;
  std::size_t m_stride;
  const float* q;
  std::size_t q_stride;
  std::size_t size;
  std::size_t rows;
  std::size_t rank;
  float* parts;
};

/// Adds the second half of each of `count` arrays of 2 * kHalf elements to its
/// first half. The sums are stored contiguously at `parts`.
template <class T, std::size_t kHalf>
HWY_INLINE void fold_halves(T* parts, std::size_t count) {
  const hn::CappedTag<T, kHalf> d;
  for (std::size_t a = 0; a < count; ++a)
    for (std::size_t k = 0; k < kHalf; k += hn::MaxLanes(d)) {
      const T* const from = parts + a * 2 * kHalf + k;
      hn::StoreU(hn::Add(hn::LoadU(d, from), hn::LoadU(d, from + kHalf)), d,
                 parts + a * kHalf + k);
    }
}

/// Replaces each of `count` groups of sixteen accumulators by its sum.
template <class T>
HWY_INLINE void fold(T* parts, std::size_t count) {
  fold_halves<T, 8>(parts, count);
  fold_halves<T, 4>(parts, count);
  fold_halves<T, 2>(parts, count);
  fold_halves<T, 1>(parts, count);
}

/// Copies the last `size` < 16 elements of `count` rows and pads them with
/// zeros. Adding 0 changes no accumulator, because none is -0.
inline void copy_rest(const float* from, std::size_t stride, std::size_t count,
                      std::size_t size, float* to) {
  for (std::size_t r = 0; r < count; ++r) {
    std::fill_n(to + r * 16, 16, 0.0f);
    std::copy_n(from + r * stride, size, to + r * 16);
  }
}

/// Multiplies rows of M by Q.
class RowProducts {
 public:
  RowProducts(const LowRankRows& in, const float* q, std::size_t rank)
      : m_(in.sum), columns_(in.columns), q_(q), rank_(rank) {
    copy_rest(q + whole_, columns_, rank, columns_ - whole_, q_rest_);
  }

  /// Writes the products of at most kBlockRows rows, starting at row i.
  HWY_INLINE void write(std::size_t i, std::size_t rows, float* p,
                        std::size_t p_stride) {
    std::fill_n(parts_, rows * rank_ * 16, 0.0f);
    const float* const m = m_ + i * columns_;
    for (std::size_t j = 0; j < whole_; j += kBlockColumns)
      add({m + j, columns_, q_ + j, columns_,
           std::min(kBlockColumns, whole_ - j), rows, rank_, parts_});
    if (whole_ < columns_) {
      alignas(64) float m_rest[kBlockRows * 16];
      copy_rest(m + whole_, columns_, rows, columns_ - whole_, m_rest);
      add({m_rest, 16, q_rest_, 16, 16, rows, rank_, parts_});
    }
    fold(parts_, rows * rank_);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < rank_; ++c)
        p[c * p_stride + i + r] = parts_[r * rank_ + c];
  }

 private:
  HWY_INLINE void add(const DotBlock& block) const {
    for_column_groups<kDotColumns>(0, rank_, block);
  }

  const float* m_;
  std::size_t columns_;
  std::size_t whole_ = columns_ / 16 * 16;
  const float* q_;
  std::size_t rank_;
  alignas(64) float q_rest_[kMostLowRank * 16];
  alignas(64) float parts_[kBlockRows * kMostLowRank * 16];
};

template <class T>
void rows_as(const LowRankRows& in, const T* values, const float* q,
             std::size_t rank, float* p, std::size_t p_stride) {
  RowProducts products(in, q, rank);
  const std::size_t columns = in.columns;
  const std::size_t most =
      std::clamp(kFormedElements / std::max<std::size_t>(columns, 1), kDotRows,
                 kBlockRows);
  for (std::size_t i = 0; i < in.rows; i += most) {
    const std::size_t rows = std::min(most, in.rows - i);
    const std::size_t at = i * columns;
    for_each_vector(rows * columns, SumStep<T>{values + at, in.factor,
                                               in.residual + at, in.sum + at});
    products.write(i, rows, p, p_stride);
  }
}

void run_low_rank_rows(const LowRankRows& in, const float* q, std::size_t rank,
                       float* p, std::size_t p_stride) {
  visit_floats(in.values, [&]<class T>(const T* values) {
    rows_as<T>(in, values, q, rank, p, p_stride);
  });
}

// --------------------------------------------------- columns of transpose(M) P
/// Numbers of rows of M and columns of P that a loop adds to sums in registers
/// at once. Two vectors of each row share the loaded values of P.
inline constexpr std::size_t kAddedRows = 16;
inline constexpr std::size_t kAddedColumns = kManyRegisters ? 8 : 4;
inline constexpr std::size_t kTwo = 2;
/// Explicit prefetch distance, because the hardware prefetcher follows fewer
/// rows than a loop reads in turn.
inline constexpr std::size_t kPrefetchedAhead = 128;

/// Copies kRows rows of P, starting at row i, so that each column's kRows
/// elements are contiguous.
template <std::size_t kRows>
HWY_INLINE void copy_factor(const float* p, std::size_t p_stride,
                            std::size_t rank, std::size_t i, float* to) {
  for (std::size_t c = 0; c < rank; ++c)
    std::copy_n(p + c * p_stride + i, kRows, to + c * kRows);
}

/// Adds kRows rows of M, times P, to the columns [begin, end) of Q.
template <std::size_t kRows>
struct AddedRows {
  template <std::size_t kColumns>
  HWY_INLINE void run(std::size_t first) const {
    std::size_t j = begin;
    for (; j + kTwo * kLanes <= end; j += kTwo * kLanes)
      add<kColumns, kTwo>(Float(), first, j);
    for (; j < end; ++j) add<kColumns, 1>(OneFloat(), first, j);
  }

  template <std::size_t kColumns, std::size_t kCount, class D>
  HWY_INLINE void add(D d, std::size_t first, std::size_t j) const {
    constexpr std::size_t kStep = hn::MaxLanes(D());
    hn::Vec<D> sums[kColumns][kCount];
    float* const to = q + first * columns + j;
    for (std::size_t c = 0; c < kColumns; ++c)
      for (std::size_t v = 0; v < kCount; ++v)
        sums[c][v] = hn::LoadU(d, to + c * columns + v * kStep);
    for (std::size_t r = 0; r < kRows; ++r) {
      hn::Vec<D> x[kCount];
      for (std::size_t v = 0; v < kCount; ++v) {
        const float* const from = m + r * columns + j + v * kStep;
        hwy::Prefetch(from + kPrefetchedAhead);
        x[v] = hn::LoadU(d, from);
      }
      for (std::size_t c = 0; c < kColumns; ++c) {
        const auto y = hn::Set(d, p[(first + c) * kRows + r]);
        for (std::size_t v = 0; v < kCount; ++v)
          sums[c][v] = hn::Add(sums[c][v], hn::Mul(x[v], y));
      }
    }
    for (std::size_t c = 0; c < kColumns; ++c)
      for (std::size_t v = 0; v < kCount; ++v)
        hn::StoreU(sums[c][v], d, to + c * columns + v * kStep);
  }

  const float* m;
  std::size_t columns;
  const float* p;  // kRows elements per column
  std::size_t begin;
  std::size_t end;
  float* q;
};

struct ColumnProducts {
  template <std::size_t kRows>
  HWY_INLINE void add(std::size_t i) const {
    float factor[kMostLowRank * kRows];
    copy_factor<kRows>(p, rows, rank, i, factor);
    for (std::size_t j = begin; j < end; j += kBlockColumns)
      for_column_groups<kAddedColumns>(
          0, rank,
          AddedRows<kRows>{m + i * columns, columns, factor, j,
                           std::min(end, j + kBlockColumns), q});
  }

  const float* m;
  std::size_t rows;
  std::size_t columns;
  const float* p;
  std::size_t rank;
  std::size_t begin;
  std::size_t end;
  float* q;
};

void run_low_rank_columns(const float* m, std::size_t rows, std::size_t columns,
                          const float* p, std::size_t rank, std::size_t begin,
                          std::size_t end, float* q) {
  for (std::size_t c = 0; c < rank; ++c)
    std::fill(q + c * columns + begin, q + c * columns + end, 0.0f);
  const ColumnProducts products{m, rows, columns, p, rank, begin, end, q};
  std::size_t i = 0;
  for (; i + kAddedRows <= rows; i += kAddedRows) products.add<kAddedRows>(i);
  for (; i < rows; ++i) products.add<1>(i);
}

// ------------------------------------------------------------ P transpose(Q)
inline bool is_aligned(const float* values) {
  return reinterpret_cast<std::uintptr_t>(values) % (kLanes * sizeof(float)) ==
         0;
}

/// Number of rows of the product whose elements stay in registers, two vectors
/// of each.
inline constexpr std::size_t kProductRows = kManyRegisters ? 8 : 4;

/// If kStreams, vectors of values bypass the caches when they are stored.
template <class T>
struct Product {
  template <bool kStreams, std::size_t kRows>
  HWY_INLINE void write_rows(std::size_t i) const {
    float factor[kMostLowRank * kRows];
    copy_factor<kRows>(p, p_stride, rank, i, factor);
    std::size_t j = 0;
    for (; j + kTwo * kLanes <= columns; j += kTwo * kLanes)
      write<kStreams, kRows, kTwo>(Float(), factor, i, j);
    for (; j < columns; ++j)
      write<kStreams, kRows, 1>(OneFloat(), factor, i, j);
  }

  template <bool kStreams, std::size_t kRows, std::size_t kCount, class D>
  HWY_INLINE void write(D d, const float* factor, std::size_t i,
                        std::size_t j) const {
    constexpr std::size_t kStep = hn::MaxLanes(D());
    hn::Vec<D> sums[kRows][kCount];
    for (auto& row : sums)
      for (auto& sum : row) sum = hn::Zero(d);
    for (std::size_t c = 0; c < rank; ++c) {
      hn::Vec<D> y[kCount];
      for (std::size_t v = 0; v < kCount; ++v)
        y[v] = hn::LoadU(d, q + c * columns + j + v * kStep);
      for (std::size_t r = 0; r < kRows; ++r) {
        const auto x = hn::Set(d, factor[c * kRows + r]);
        for (std::size_t v = 0; v < kCount; ++v)
          sums[r][v] = hn::Add(sums[r][v], hn::Mul(x, y[v]));
      }
    }
    for (std::size_t r = 0; r < kRows; ++r)
      for (std::size_t v = 0; v < kCount; ++v)
        finish<kStreams>(d, sums[r][v], (i + r) * columns + j + v * kStep);
  }

  template <bool kStreams, class D>
  HWY_INLINE void finish(D d, hn::Vec<D> out, std::size_t at) const {
    if (m != nullptr) store(d, hn::Sub(load(d, m + at), out), m + at);
    const auto scaled = hn::Mul(out, hn::Set(d, scale));
    const auto limit = hn::Set(d, most);
    const auto limited = hn::Min(hn::Max(scaled, hn::Neg(limit)), limit);
    const auto stored = hn::IfThenElse(hn::IsFinite(out), limited, scaled);
    if constexpr (kStreams && hn::MaxLanes(D()) == kLanes)
      hn::Stream(stored, d, values + at);
    else
      store(d, stored, values + at);
  }

  const float* p;
  std::size_t p_stride;
  const float* q;
  std::size_t rank;
  std::size_t columns;
  float* m;
  float scale;
  T* values;
  float most = largest_finite(dtype_of<T>);
};

// Local copy that no store can alias.
template <bool kStreams, class T>
void write_product(const Product<T> product, std::size_t rows) {
  std::size_t i = 0;
  for (; i + kProductRows <= rows; i += kProductRows)
    product.template write_rows<kStreams, kProductRows>(i);
  for (; i < rows; ++i) product.template write_rows<kStreams, 1>(i);
}

/// Values in aligned rows are stored past the caches, because all other
/// matrices are written before these values are read again.
template <class T>
void product_as(const Product<T>& product, std::size_t rows) {
  if constexpr (std::is_same_v<T, float>) {
    if (is_aligned(product.values) && product.columns % kLanes == 0) {
      write_product<true>(product, rows);
      return hwy::FlushStream();
    }
  }
  write_product<false>(product, rows);
}

void run_low_rank_product(const float* p, std::size_t p_stride, const float* q,
                          std::size_t rank, std::size_t rows,
                          std::size_t columns, float* m, float scale,
                          View values) {
  visit_floats(values, [&]<class T>(T* to) {
    product_as(Product<T>{p, p_stride, q, rank, columns, m, scale, to}, rows);
  });
}

// -------------------------------------------------------------- Gram-Schmidt
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
  fold(parts, 1);
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
