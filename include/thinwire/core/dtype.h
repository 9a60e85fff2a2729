// SPDX-License-Identifier: Apache-2.0
#pragma once

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

/// Element types that views, buffers and messages can hold. Models use the
/// first three; the others carry counters, norms and bytes between ranks.
enum class DType : std::uint8_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat64,
  kInt32,
  kInt64,
  kUInt8,
};

/// Bytes of one element.
[[nodiscard]] std::size_t size_of(DType dtype) noexcept;

/// "float32", "float16", "bfloat16", ...: the names PyTorch uses.
[[nodiscard]] const char* to_string(DType dtype) noexcept;

/// Conversions round to nearest, ties to even; overflow gives infinity and a
/// NaN stays a NaN (quiet, sign and upper payload bits kept).
[[nodiscard]] float to_float(Half value) noexcept;
[[nodiscard]] float to_float(BFloat16 value) noexcept;
[[nodiscard]] Half to_half(float value) noexcept;
[[nodiscard]] BFloat16 to_bfloat16(float value) noexcept;

/// The DType of a C++ element type; defined for those named above.
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

}  // namespace thinwire
