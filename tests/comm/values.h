// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <functional>

#include "thinwire/core/buffer.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/view.h"

namespace thinwire::test {

inline constexpr DType kAllDTypes[] = {
    DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64,
    DType::kInt32,   DType::kInt64,   DType::kUInt8};

inline bool is_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 ||
         dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

/// Element i of a view of any dtype, as a double.
inline double get(ConstView view, std::size_t i) {
  switch (view.dtype()) {
    case DType::kFloat32:
      return view.as<float>()[i];
    case DType::kFloat16:
      return to_float(view.as<Half>()[i]);
    case DType::kBFloat16:
      return to_float(view.as<BFloat16>()[i]);
    case DType::kFloat64:
      return view.as<double>()[i];
    case DType::kInt32:
      return view.as<std::int32_t>()[i];
    case DType::kInt64:
      return static_cast<double>(view.as<std::int64_t>()[i]);
    case DType::kUInt8:
      return view.as<std::uint8_t>()[i];
  }
  return 0;
}

inline void set(View view, std::size_t i, double value) {
  switch (view.dtype()) {
    case DType::kFloat32:
      view.as<float>()[i] = static_cast<float>(value);
      return;
    case DType::kFloat16:
      view.as<Half>()[i] = to_half(static_cast<float>(value));
      return;
    case DType::kBFloat16:
      view.as<BFloat16>()[i] = to_bfloat16(static_cast<float>(value));
      return;
    case DType::kFloat64:
      view.as<double>()[i] = value;
      return;
    case DType::kInt32:
      view.as<std::int32_t>()[i] = static_cast<std::int32_t>(value);
      return;
    case DType::kInt64:
      view.as<std::int64_t>()[i] = static_cast<std::int64_t>(value);
      return;
    case DType::kUInt8:
      view.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(value);
      return;
  }
}

inline Buffer filled(DType dtype, std::size_t size,
                     const std::function<double(std::size_t)>& value) {
  Buffer buffer(size, dtype);
  for (std::size_t i = 0; i < size; ++i) set(buffer.view(), i, value(i));
  return buffer;
}

/// What rank r holds at element i: 0 .. 12, so that sums of eight ranks are
/// exact in every dtype.
inline double sample(int rank, std::size_t i) {
  return static_cast<double>((static_cast<std::size_t>(rank) * 5 + i * 3) % 13);
}

/// Values of very different size, so that another order, or another place of
/// the rounding, gives other bits; some sums are too large for a Half whose
/// mean is not.
inline double uneven(int rank, std::size_t i) {
  const double angle = static_cast<double>(i) * 0.37 + rank * 1.91;
  if (i % 5 == 0) return 40000 + std::sin(angle);
  return std::sin(angle) * std::pow(10.0, (rank * 7) % 5);
}

}  // namespace thinwire::test
