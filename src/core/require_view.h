// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string_view>

#include "core/require.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/view.h"

namespace thinwire {

/// Returns whether `dtype` is fp16 or bf16.
[[nodiscard]] inline bool is_16_bit(DType dtype) noexcept {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

/// Throws Error(kInvalidArgument) unless the flat array has `size` elements of
/// a type that it may have.
inline void require_view(std::string_view name, ConstView view,
                         std::size_t size, bool may_be_float32,
                         bool may_be_16_bit) {
  const bool fits = view.dtype() == DType::kFloat32
                        ? may_be_float32
                        : may_be_16_bit && is_16_bit(view.dtype());
  if (fits && view.size() == size) return;
  std::string_view types = "float32, float16 or bfloat16";
  if (!may_be_16_bit) types = "float32";
  if (!may_be_float32) types = "float16 or bfloat16";
  reject(fmt::format("{} must be {} of {} elements, got {} of {}", name, types,
                     size, to_string(view.dtype()), view.size()));
}

}  // namespace thinwire
