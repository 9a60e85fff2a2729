// SPDX-License-Identifier: Apache-2.0
// Sums of thinwire/kernels/norm.h for one SIMD target.

#if defined(THINWIRE_KERNELS_CPU_ORDERED_SUM_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_CPU_ORDERED_SUM_INL_H_
#undef THINWIRE_KERNELS_CPU_ORDERED_SUM_INL_H_
#else
#define THINWIRE_KERNELS_CPU_ORDERED_SUM_INL_H_
#endif

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/vectors-inl.h"
#include "thinwire/kernels/norm.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

/// Terms to add: squares or absolute values.
enum class Term { kSquare, kAbs };

/// The sum of one chunk, which adds whole groups of 16 first and then the rest.
class OrderedSum {
 public:
  explicit OrderedSum(Term term) : squares_(term == Term::kSquare) {
    for (auto& part : parts_) part = hn::Zero(Double());
  }

  /// Adds the 16 elements at x.
  template <class T>
  HWY_INLINE void add_group(const T* x) {
    if (squares_) {
      for (std::size_t k = 0; k < kVectors; ++k) {
        parts_[k] = plus_square(Double(), parts_[k], x + k * kDoubles);
      }
    } else {
      for (std::size_t k = 0; k < kVectors; ++k) {
        parts_[k] = plus_abs(Double(), parts_[k], x + k * kDoubles);
      }
    }
  }

  /// Adds the 32 elements at x.
  HWY_INLINE void add_word(const float* x) {
    add_group(x);
    add_group(x + 16);
  }

  /// Adds the last `rest` < 32 elements, at x, and returns the sum.
  HWY_INLINE double total_with_word(const float* x, std::size_t rest) {
    if (rest < 16) return total(x, rest);
    add_group(x);
    return total(x + 16, rest - 16);
  }

  /// Adds the last `rest` < 16 elements, at x, and returns the sum.
  template <class T>
  HWY_INLINE double total(const T* x, std::size_t rest) const {
    HWY_ALIGN double parts[16];
    for (std::size_t k = 0; k < kVectors; ++k) {
      hn::Store(parts_[k], Double(), parts + k * kDoubles);
    }
    const hn::CappedTag<double, 1> one;
    for (std::size_t i = 0; i < rest; ++i) {
      const auto part = hn::LoadU(one, parts + i);
      parts[i] = hn::GetLane(squares_ ? plus_square(one, part, x + i)
                                      : plus_abs(one, part, x + i));
    }
    for (std::size_t half = 8; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) parts[i] += parts[i + half];
    }
    return parts[0];
  }

 private:
  using Double = hn::CappedTag<double, 16>;
  static constexpr std::size_t kDoubles = hn::MaxLanes(Double());
  static constexpr std::size_t kVectors = 16 / kDoubles;

  template <class D, class T>
  static HWY_INLINE hn::Vec<D> widened(D d, const T* x) {
    return hn::PromoteTo(d, load(hn::Rebind<float, D>(), x));
  }

  // Because a float's square is exact in double, a fused operation gives the
  // same bits.
  template <class D, class T>
  static HWY_INLINE hn::Vec<D> plus_square(D d, hn::Vec<D> sum, const T* x) {
    const auto term = widened(d, x);
    return hn::MulAdd(term, term, sum);
  }

  template <class D, class T>
  static HWY_INLINE hn::Vec<D> plus_abs(D d, hn::Vec<D> sum, const T* x) {
    return hn::Add(sum, hn::Abs(widened(d, x)));
  }

  bool squares_;
  hn::Vec<Double> parts_[kVectors];
};

/// Calls word(w, count) for the words of `size` elements. Adds up the squares
/// of the values at `written` chunk by chunk, while they are still in the
/// cache.
template <bool kPrefetch, class Word>
HWY_INLINE double sum_written(std::size_t size, const float* written,
                              Word& word) {
  double total = 0;
  for (std::size_t begin = 0; begin < size; begin += kSumChunk) {
    const std::size_t end = std::min(begin + kSumChunk, size);
    OrderedSum sum(Term::kSquare);
    std::size_t i = begin;
    for (; i + 32 <= end; i += 32) {
      prefetch_for<kPrefetch>(word, i, 32);
      word(i / 32, 32);
      sum.add_word(written + i);
    }
    if (i < end) word(i / 32, end - i);
    total += sum.total_with_word(written + i, end - i);
  }
  return total;
}

/// Returns the sum of the squares of a chunk's terms.
HWY_INLINE double sum_of_terms(const float* terms, std::size_t count) {
  OrderedSum sum(Term::kSquare);
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) sum.add_group(terms + i);
  return sum.total(terms + i, count - i);
}

struct TwoSums {
  double first = 0;
  double second = 0;
};

template <bool kPrefetch, class Word, class Sink>
HWY_INLINE void two_sums_loop(std::size_t size, std::size_t first_chunk,
                              Word& word, const Sink& sink) {
  alignas(64) float first[kSumChunk + 32];
  alignas(64) float second[kSumChunk + 32];
  std::size_t k = 0;  // buffered terms, partly of the next chunk
  std::size_t count = first_chunk;
  for (std::size_t begin = 0; begin < size; begin += count) {
    if (begin > 0) count = kSumChunk;
    count = std::min(count, size - begin);
    for (; k < count && begin + k + 32 <= size; k += 32) {
      prefetch_for<kPrefetch>(word, begin + k, 32);
      word((begin + k) / 32, 32, first + k, second + k);
    }
    if (k < count) {
      word((begin + k) / 32, size - begin - k, first + k, second + k);
      k = size - begin;
    }
    sink(TwoSums{sum_of_terms(first, count), sum_of_terms(second, count)});
    std::copy(first + count, first + k, first);
    std::copy(second + count, second + k, second);
    k -= count;
  }
}

/// Calls word(w, count, first, second) for the words of `size` elements, which
/// writes up to 32 terms into each of `first` and `second`. Calls sink(sums)
/// with the sums of the terms' squares for each chunk. The first chunk has
/// `first_chunk` <= kSumChunk elements, and a word may cross the border of two
/// chunks. Each chunk's terms are summed at once, because other work leaves too
/// few registers for all accumulators.
template <class Word, class Sink>
HWY_INLINE void two_sums_of_squares(std::size_t size, std::size_t first_chunk,
                                    Word& word, const Sink& sink) {
  if (kCanPrefetch<Word> && prefetches()) {
    two_sums_loop<true>(size, first_chunk, word, sink);
  } else {
    two_sums_loop<false>(size, first_chunk, word, sink);
  }
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_CPU_ORDERED_SUM_INL_H_
