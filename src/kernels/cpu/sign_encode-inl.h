// SPDX-License-Identifier: Apache-2.0
// One pass over a block that computes its corrected residual, its signs and its
// sum, for one SIMD target.

#if defined(THINWIRE_KERNELS_CPU_SIGN_ENCODE_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_CPU_SIGN_ENCODE_INL_H_
#undef THINWIRE_KERNELS_CPU_SIGN_ENCODE_INL_H_
#else
#define THINWIRE_KERNELS_CPU_SIGN_ENCODE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/ordered_sum-inl.h"
#include "kernels/cpu/signs-inl.h"
#include "thinwire/kernels/sign_compress.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

/// Returns c - scale for positive c and c + scale for negative c.
template <class D>
HWY_INLINE hn::Vec<D> error_of(D d, hn::Vec<D> c, float scale) {
  const auto s = hn::Set(d, scale);
  return hn::Sub(c, hn::IfThenElse(hn::Lt(c, hn::Zero(d)), hn::Neg(s), s));
}

// A residual class has error(tag, i), which returns e; c(), the destination of
// c; and prefetch(i, count), which prefetches e.

/// A residual in fp32, stored as the last c, which the next c overwrites.
struct KeptSum {
  explicit KeptSum(const SignBlock& block)
      : values(static_cast<float*>(block.residual.data())),
        scale(block.scale) {}

  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(values + i, count);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> error(D d, std::size_t i) const {
    return error_of(d, hn::LoadU(d, values + i), scale);
  }
  HWY_INLINE float* c() const { return values; }
  void keep(float /*scale*/, const SignBlock&) const {}

  float* values;
  float scale;
};

/// A residual in bf16, stored as e itself, rounded. Because c would not survive
/// the rounding, it stays in the first-level cache until e is computed from it.
struct RoundedError {
  RoundedError(const SignBlock& block, float* scratch)
      : values(static_cast<BFloat16*>(block.residual.data())), sums(scratch) {}

  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(values + i, count);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> error(D d, std::size_t i) const {
    return load(d, values + i);
  }
  HWY_INLINE float* c() const { return sums; }

  void keep(float scale, const SignBlock& block) const {
    const Word word{*this, scale};
    for_each_word(block.residual.size(), block.active, word);
  }

  struct Word {
    HWY_INLINE void operator()(std::size_t w, std::uint32_t active,
                               std::size_t count) const {
      const Part part{*this, active, w * 32};
      for_each_part(count, part);
    }

    struct Part {
      template <class D>
      HWY_INLINE void operator()(D d, std::size_t j) const {
        const std::size_t i = first + j;
        auto e = error_of(d, hn::LoadU(d, of.of.sums + i), of.scale);
        if (HWY_UNLIKELY(active != kAllActive)) {
          e = hn::IfThenElseZero(lanes_of(d, active, j), e);
        }
        store(d, e, of.of.values + i);
      }

      const Word& of;
      std::uint32_t active;
      std::size_t first;
    };

    const RoundedError& of;
    float scale;
  };

  BFloat16* values;
  float* sums;  // same number of elements
};

// X is the value added to the error. It has begin_word(w) for w = 0, 1, ...,
// and at(tag, j) for the elements j of that word. If it reads arrays of floats,
// it also has prefetch(i, count).

template <class X, class Residual>
struct EncodePart {
  template <class D>
  HWY_INLINE void operator()(D d, std::size_t j) {
    const auto c = hn::Add(x.at(d, j), residual.error(d, first + j));
    hn::StoreU(c, d, out + j);
    negatives |= word_of(d, hn::Lt(c, hn::Zero(d)), j);
  }

  const X& x;
  const Residual& residual;
  std::size_t first;
  float* out;
  std::uint32_t negatives = 0;
};

/// Writes c and the signs of a word's elements.
template <class X, class Residual>
struct EncodeWord {
  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_for<true>(x, i, count);
    residual.prefetch(i, count);
  }
  HWY_INLINE void operator()(std::size_t w, std::size_t count) {
    x.begin_word(w);
    EncodePart<X, Residual> part{x, residual, w * 32, residual.c() + w * 32};
    for_each_part(count, part);
    const std::uint32_t active = active_word(mask, w);
    const std::uint32_t inside = kAllActive >> (32 - count);
    words[w] = ~(part.negatives & active) & inside;
    zero_masked(part.out, active, count);
  }

  X x;  // local copy that no store can alias
  Residual residual;
  std::uint32_t* words;
  const std::uint32_t* mask;
};

template <bool kPrefetch, class X, class Residual>
double encode_loop(const X& x, const Residual& residual,
                   const SignBlock& block) {
  EncodeWord<X, Residual> word{x, residual, block.words, block.active};
  return sum_written<kPrefetch>(block.residual.size(), residual.c(), word);
}

template <class X, class Residual>
float encode_over(const X& x, const Residual& residual,
                  const SignBlock& block) {
  const double sum = prefetches() ? encode_loop<true>(x, residual, block)
                                  : encode_loop<false>(x, residual, block);
  const float scale = sign_scale(sum, block.num_active);
  residual.keep(scale, block);
  return scale;
}

/// Does the work of sign_encode() with c = x + e. Returns the scale.
template <class X>
float encode(const X& x, const SignBlock& block) {
  if (block.residual.dtype() == DType::kFloat32) {
    return encode_over(x, KeptSum(block), block);
  }
  alignas(64) float sums[kMostRoundedElements];
  return encode_over(x, RoundedError(block, sums), block);
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_CPU_SIGN_ENCODE_INL_H_
