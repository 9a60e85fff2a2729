// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "core/require.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/view.h"

namespace thinwire {

/// Returns whether `dtype` is fp16 or bf16.
[[nodiscard]] inline bool is_16_bit(DType dtype) noexcept {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

/// Throws Error(kInvalidArgument) unless the elements lie at multiples of their
/// size.
inline void require_aligned(std::string_view name, ConstView view) {
  for (const ConstView part : view.parts()) {
    const std::size_t size = size_of(part.dtype());
    const auto at = reinterpret_cast<std::uintptr_t>(part.data());
    if (!part.empty() && at % size != 0)
      reject(fmt::format("{} must lie at a multiple of {} bytes, got {:#x}",
                         name, size, at));
  }
}

/// Returns whether the arrays share memory.
[[nodiscard]] inline bool overlap(ConstView a, ConstView b) {
  const std::less<const std::byte*> before;  // total, even between arrays
  for (const ConstView one : a.parts())
    for (const ConstView other : b.parts()) {
      if (one.empty() || other.empty()) continue;
      const auto* first = static_cast<const std::byte*>(one.data());
      const auto* second = static_cast<const std::byte*>(other.data());
      if (before(first, second + other.bytes()) &&
          before(second, first + one.bytes()))
        return true;
    }
  return false;
}

/// Throws Error(kInvalidArgument) unless the arrays are aligned and do not
/// overlap.
inline void require_params_and_grads(ConstView params, ConstView grads) {
  require_aligned("params", params);
  require_aligned("grads", grads);
  if (overlap(params, grads))
    reject("params and grads must not overlap, got memory that does");
}

/// Throws Error(kInvalidArgument) unless the flat array has `size` elements of
/// an accepted type.
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
