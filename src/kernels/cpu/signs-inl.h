// SPDX-License-Identifier: Apache-2.0
// Conversions between bits and lanes, and loops over the words of a block, for
// one SIMD target. Element i is bit i mod 32 of word i / 32.

#if defined(THINWIRE_KERNELS_CPU_SIGNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_CPU_SIGNS_INL_H_
#undef THINWIRE_KERNELS_CPU_SIGNS_INL_H_
#else
#define THINWIRE_KERNELS_CPU_SIGNS_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

inline constexpr std::uint32_t kAllActive = 0xffff'ffffu;

struct Bits {
  constexpr Bits() {
    for (std::size_t i = 0; i < 32; ++i) value[i] = std::uint32_t{1} << i;
  }
  alignas(64) std::uint32_t value[32] = {};
};
inline constexpr Bits kBits;

/// Returns the mask of lanes whose bits are set in `word`, which every lane
/// holds. Lane 0 is the word's element j.
template <class D>
HWY_INLINE hn::Mask<D> lanes_of(D d, hn::Vec<Uint<D>> word, std::size_t j) {
  const Uint<D> du;
  return hn::RebindMask(d, hn::TestBit(word, hn::LoadU(du, kBits.value + j)));
}

template <class D>
HWY_INLINE hn::Mask<D> lanes_of(D d, std::uint32_t word, std::size_t j) {
  return lanes_of(d, hn::Set(Uint<D>(), word), j);
}

/// Returns the bits of a mask of lanes.
template <class D>
HWY_INLINE std::uint32_t word_of(D d, hn::Mask<D> lanes, std::size_t j) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(d, lanes, bytes);
  std::uint16_t bits;  // at most 16 lanes
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(&bits, bytes, sizeof bits);
  return std::uint32_t{bits} << j;
}

/// Returns +value for set bits and -value for the others.
template <class D>
HWY_INLINE hn::Vec<D> signed_value(D d, hn::Vec<D> value, hn::Vec<Uint<D>> word,
                                   std::size_t j) {
  return hn::IfThenElse(lanes_of(d, word, j), value, hn::Neg(value));
}

template <class D>
HWY_INLINE hn::Vec<D> signed_value(D d, float value, std::uint32_t word,
                                   std::size_t j) {
  return signed_value(d, hn::Set(d, value), hn::Set(Uint<D>(), word), j);
}

/// Returns the active bits of word w.
inline std::uint32_t active_word(const std::uint32_t* active, std::size_t w) {
  return active == nullptr ? kAllActive : active[w];
}

template <bool kPrefetch, class Word>
HWY_INLINE void word_loop(std::size_t size, const std::uint32_t* active,
                          Word& word) {
  const std::size_t whole = size / 32;
  for (std::size_t w = 0; w < whole; ++w) {
    prefetch_for<kPrefetch>(word, w * 32, 32);
    word(w, active_word(active, w), 32);
  }
  if (size % 32 != 0) {
    word(whole, active_word(active, whole), size % 32);
  }
}

/// Calls word(w, active, count) for the words of a block. `active` has the
/// active bits; `count` is 32 except in the last word.
template <class Word>
HWY_INLINE void for_each_word(std::size_t size, const std::uint32_t* active,
                              Word& word) {
  if (kCanPrefetch<Word> && prefetches()) {
    word_loop<true>(size, active, word);
  } else {
    word_loop<false>(size, active, word);
  }
}

/// Calls part(tag, j) for the first `count` elements of one word.
template <class Part>
HWY_INLINE void for_each_part(std::size_t count, Part& part) {
  if (HWY_LIKELY(count == 32)) {
    for (std::size_t j = 0; j < 32; j += kLanes) part(Float(), j);
  } else {
    for (std::size_t j = 0; j < count; ++j) part(OneFloat(), j);
  }
}

struct Mask {
  template <class D>
  HWY_INLINE void operator()(D d, std::size_t j) const {
    const auto value = hn::LoadU(d, x + j);
    hn::StoreU(hn::IfThenElseZero(lanes_of(d, active, j), value), d, x + j);
  }

  float* x;
  std::uint32_t active;
};

/// Sets the masked elements of a word to 0. Few words have any, so a second
/// pass over those costs less than masks everywhere.
HWY_INLINE void zero_masked(float* x, std::uint32_t active, std::size_t count) {
  if (HWY_LIKELY(active == kAllActive)) return;
  const Mask part{x, active};
  for_each_part(count, part);
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_CPU_SIGNS_INL_H_
