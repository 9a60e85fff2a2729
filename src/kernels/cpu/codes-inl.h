// SPDX-License-Identifier: Apache-2.0
// Codes of thinwire/kernels/quantize.h in memory and in vectors, for one SIMD
// target.

#if defined(THINWIRE_KERNELS_CPU_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_CPU_CODES_INL_H_
#undef THINWIRE_KERNELS_CPU_CODES_INL_H_
#else
#define THINWIRE_KERNELS_CPU_CODES_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/vectors-inl.h"
#include "thinwire/kernels/quantize.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

/// Returns L, the distance between the largest code and the code of 0.
constexpr int half_range(int bits) { return (1 << (bits - 1)) - 1; }

/// A vector whose codes fit into one word even at 4 bits.
using EightFloats = hn::CappedTag<float, 8>;

alignas(32) inline constexpr std::uint32_t kShiftsBy4[8] = {0,  4,  8,  12,
                                                            16, 20, 24, 28};

/// Reads the codes q of a block.
struct CodeReader {
  CodeReader(const std::uint32_t* from, int width)
      : words(from),
        bits(static_cast<std::size_t>(width)),
        half(half_range(width)) {}

  /// Returns the values from element i on; i is a multiple of D's lanes.
  template <class D>
  HWY_INLINE hn::Vec<D> at(D d, std::size_t i) const {
    const Int<D> di;
    return hn::ConvertTo(d, hn::Sub(codes(di, i), hn::Set(di, half)));
  }

  template <class DI>
  HWY_INLINE hn::Vec<DI> codes(DI di, std::size_t i) const {
    if (bits == 8) {
      const hn::Rebind<std::uint8_t, DI> d8;
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(words);
      return hn::PromoteTo(di, hn::LoadU(d8, bytes + i));
    }
    const hn::RebindToUnsigned<DI> du;
    const std::uint32_t word = words[i * bits / 32] >> (i * bits % 32);
    const auto shifts = hn::LoadU(du, kShiftsBy4);
    const auto mask = hn::Set(du, (1u << bits) - 1);
    const auto code = hn::And(hn::Shr(hn::Set(du, word), shifts), mask);
    return hn::BitCast(di, code);
  }

  const std::uint32_t* words;
  std::size_t bits;
  int half;
};

/// Packs 8 bytes, each below 2^bits, into `bits` bytes at p. It joins
/// neighbours first, then pairs, then fours.
HWY_INLINE void store_together(std::uint64_t x, int bits, std::uint8_t* p) {
  static_assert(std::endian::native == std::endian::little);
  if (bits == 8) {
    std::memcpy(p, &x, 8);
  } else {
    x = (x | x >> 4) & 0x00ff'00ff'00ff'00ffu;
    x = (x | x >> 8) & 0x0000'ffff'0000'ffffu;
    const auto packed = static_cast<std::uint32_t>(x | x >> 16);
    std::memcpy(p, &packed, 4);
  }
}

/// Buffer for 32 codes, a byte each, with 0 past the end of a block.
struct Codes {
  /// Writes the first `count` codes to the block, from element 32 * w on.
  HWY_INLINE void write(std::uint32_t* words, int bits, std::size_t w,
                        std::size_t count) const {
    const auto step = static_cast<std::size_t>(bits);
    std::uint8_t last[32];
    auto* const whole = reinterpret_cast<std::uint8_t*>(words + w * step);
    auto* const to = count == 32 ? whole : last;
    for (std::size_t k = 0; k < 4; ++k) {
      std::uint64_t x;
      std::memcpy(&x, value + 8 * k, 8);
      store_together(x, bits, to + k * step);
    }
    if (HWY_UNLIKELY(count < 32)) {
      std::memcpy(whole, last, 4 * quantized_words(count, bits));
    }
  }

  alignas(64) std::uint8_t value[32] = {};
};

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_CPU_CODES_INL_H_
