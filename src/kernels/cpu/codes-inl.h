// SPDX-License-Identifier: Apache-2.0
// The codes of thinwire/kernels/quantize.h in memory and in vectors, for one
// SIMD target.

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

/// L, the distance of the largest code from the code of 0.
constexpr int half_range(int bits) { return (1 << (bits - 1)) - 1; }

// The codes of a word of `active`, 32 elements, are `bits` words, 4 * bits
// bytes. Eight of them are `bits` bytes; beside each other or one to a byte of
// 64 bits.
static_assert(std::endian::native == std::endian::little);

template <class T>
HWY_INLINE std::uint64_t load_as(const std::uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

template <class T>
HWY_INLINE void store_as(std::uint64_t x, std::uint8_t* p) {
  const auto value = static_cast<T>(x);
  std::memcpy(p, &value, sizeof value);
}

/// Neighbours are moved apart in halves, then in halves of those, ...
HWY_INLINE std::uint64_t load_codes(const std::uint8_t* p, int bits) {
  if (bits == 8) return load_as<std::uint64_t>(p);
  if (bits == 4) {
    std::uint64_t x = load_as<std::uint32_t>(p);
    x = (x | x << 16) & 0x0000'ffff'0000'ffffu;
    x = (x | x << 8) & 0x00ff'00ff'00ff'00ffu;
    return (x | x << 4) & 0x0f0f'0f0f'0f0f'0f0fu;
  }
  std::uint64_t x = load_as<std::uint16_t>(p);
  x = (x | x << 24) & 0x0000'00ff'0000'00ffu;
  x = (x | x << 12) & 0x000f'000f'000f'000fu;
  return (x | x << 6) & 0x0303'0303'0303'0303u;
}

/// And together again.
HWY_INLINE void store_codes(std::uint64_t x, int bits, std::uint8_t* p) {
  if (bits == 8) return store_as<std::uint64_t>(x, p);
  if (bits == 4) {
    x = (x | x >> 4) & 0x00ff'00ff'00ff'00ffu;
    x = (x | x >> 8) & 0x0000'ffff'0000'ffffu;
    return store_as<std::uint32_t>(x | x >> 16, p);
  }
  x = (x | x >> 6) & 0x000f'000f'000f'000fu;
  x = (x | x >> 12) & 0x0000'00ff'0000'00ffu;
  store_as<std::uint16_t>(x | x >> 24, p);
}

/// 32 codes, a byte each.
struct Codes {
  /// Those of word w of a block, of which only `count` are inside.
  HWY_INLINE void read(const std::uint32_t* words, int bits, std::size_t w,
                       std::size_t count) {
    const auto step = static_cast<std::size_t>(bits);
    const auto* from = reinterpret_cast<const std::uint8_t*>(words + w * step);
    std::uint8_t inside[32] = {};
    if (HWY_UNLIKELY(count < 32)) {
      std::memcpy(inside, from, 4 * quantized_words(count, bits));
      from = inside;
    }
    for (std::size_t k = 0; k < 4; ++k) {
      store_as<std::uint64_t>(load_codes(from + k * step, bits), value + 8 * k);
    }
  }

  HWY_INLINE void write(std::uint32_t* words, int bits, std::size_t w,
                        std::size_t count) const {
    const auto step = static_cast<std::size_t>(bits);
    std::uint8_t packed[32];
    for (std::size_t k = 0; k < 4; ++k) {
      store_codes(load_as<std::uint64_t>(value + 8 * k), bits,
                  packed + k * step);
    }
    std::memcpy(words + w * step, packed, 4 * quantized_words(count, bits));
  }

  /// q of element j and those after it.
  template <class D>
  HWY_INLINE hn::Vec<D> at(D d, std::size_t j, int half) const {
    const Int<D> di;
    const hn::Rebind<std::uint8_t, D> d8;
    const auto code = hn::PromoteTo(di, hn::LoadU(d8, value + j));
    return hn::ConvertTo(d, hn::Sub(code, hn::Set(di, half)));
  }

  alignas(64) std::uint8_t value[32] = {};
};

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_CPU_CODES_INL_H_
