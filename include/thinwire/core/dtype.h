// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace thinwire {

/// IEEE 754 binary16, as its bits. Arithmetic happens in float.
struct Half {
  std::uint16_t bits = 0;
};

/// The upper half of a float, as its bits. Arithmetic happens in float.
struct BFloat16 {
  std::uint16_t bits = 0;
};

/// Element types of views, buffers and messages. Parameters use the first
/// three. The others serve counters, norms, bytes and other tensors.
enum class DType : std::uint8_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat64,
  kInt32,
  kInt64,
  kUInt8,
};

/// Returns the bytes of one element.
[[nodiscard]] std::size_t size_of(DType dtype) noexcept;

/// Returns the name that PyTorch uses, for example "float32" or "bfloat16".
[[nodiscard]] const char* to_string(DType dtype) noexcept;

/// Converts with rounding to nearest, ties to even. Overflow gives infinity. A
/// NaN stays a NaN with its sign and upper payload, but narrowing makes it
/// quiet.
[[nodiscard]] inline float to_float(Half value) noexcept;
[[nodiscard]] inline float to_float(BFloat16 value) noexcept;
[[nodiscard]] inline Half to_half(float value) noexcept;
[[nodiscard]] inline BFloat16 to_bfloat16(float value) noexcept;

/// The DType of a C++ element type. Defined for the types named above.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kFloat32;
};
template <>
struct DTypeOf<Half> {
  static constexpr DType value = DType::kFloat16;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::kBFloat16;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kFloat64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::kInt32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::kInt64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::kUInt8;
};
template <>
struct DTypeOf<std::byte> {
  static constexpr DType value = DType::kUInt8;
};

template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

// These are inline and have no branches, so that compilers vectorize loops over
// them. Magnitudes are positive as signed integers, which compare faster.

inline float to_float(BFloat16 value) noexcept {
  return std::bit_cast<float>(std::uint32_t{value.bits} << 16);
}

inline BFloat16 to_bfloat16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto magnitude = static_cast<std::int32_t>(bits & 0x7fff'ffffu);
  // Adds half of the last kept place, or just less if that place is even.
  const std::uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  // Without this bit, a NaN whose payload lies in the dropped half would become
  // infinity.
  const std::uint32_t quiet = bits | 0x40'0000u;
  const std::uint32_t chosen = magnitude > 0x7f80'0000 ? quiet : rounded;
  return {static_cast<std::uint16_t>(chosen >> 16)};
}

inline float to_float(Half value) noexcept {
  const std::uint32_t upper = std::uint32_t{value.bits} << 16;
  // Moves exponent and fraction to their places in a float. The bias differs by
  // 112, and by another 112 for infinities and NaNs.
  const auto magnitude = static_cast<std::int32_t>(upper >> 3 & 0x0fff'e000u);
  const std::int32_t more = magnitude >= 31 << 23 ? 112 << 23 : 0;
  // A subnormal f * 2^-24 equals (1 + f / 2^10) * 2^-14 - 2^-14 exactly.
  const std::int32_t one = magnitude < 1 << 23 ? 1 << 23 : 0;
  const float excess = magnitude < 1 << 23 ? 0x1p-14f : 0.0f;
  const std::int32_t bits = magnitude + (112 << 23) + more + one;
  const float result = std::bit_cast<float>(bits) - excess;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(result) |
                              (upper & 0x8000'0000u));
}

inline Half to_half(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const auto magnitude = static_cast<std::int32_t>(bits & 0x7fff'ffffu);
  const std::int32_t odd = magnitude >> 13 & 1;
  const std::int32_t normal = (magnitude - (112 << 23) + 0xfff + odd) >> 13;
  // Below 2^-14, adding 0.5 makes the float unit round to multiples of 2^-24.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  const auto subnormal = std::bit_cast<std::int32_t>(shifted) - 0x3f00'0000;
  const std::int32_t nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
  std::int32_t half = magnitude < 0x3880'0000 ? subnormal : normal;
  // From 65520 on, rounding to nearest gives infinity.
  half = magnitude >= 0x477f'f000 ? 0x7c00 : half;
  half = magnitude > 0x7f80'0000 ? nan : half;
  return {static_cast<std::uint16_t>(static_cast<std::uint32_t>(half) | sign)};
}

}  // namespace thinwire
