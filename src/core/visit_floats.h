// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>
#include <span>

#include "thinwire/core/dtype.h"
#include "thinwire/core/view.h"

/// Loops over elements in fp32, fp16 or bf16.
namespace thinwire {

inline float to_float(float value) noexcept { return value; }

inline void store_rounded(float value, float* p) { *p = value; }
inline void store_rounded(float value, Half* p) { *p = to_half(value); }
inline void store_rounded(float value, BFloat16* p) { *p = to_bfloat16(value); }

/// Returns the largest finite value of `dtype`, which is fp32, fp16 or bf16.
inline float largest_finite(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat16:
      return 65504.0f;
    case DType::kBFloat16:
      return 0x1.FEp127f;
    default:
      return std::numeric_limits<float>::max();
  }
}

/// Calls f with a typed pointer to the elements of `view`, which are fp32, fp16
/// or bf16.
template <class V, class F>
decltype(auto) visit_floats(const V& view, F&& f) {
  switch (view.dtype()) {
    case DType::kFloat16:
      return f(view.template as<Half>().data());
    case DType::kBFloat16:
      return f(view.template as<BFloat16>().data());
    default:
      return f(view.template as<float>().data());
  }
}

/// Writes values[i] * factor, rounded once, to `to`, which has the same size.
inline void write_scaled(ConstView values, float factor, std::span<float> to) {
  visit_floats(values, [&](const auto* from) {
    for (std::size_t i = 0; i < to.size(); ++i)
      to[i] = to_float(from[i]) * factor;
  });
}

}  // namespace thinwire
