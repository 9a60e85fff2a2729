// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "thinwire/core/dtype.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"

namespace thinwire::compress {

/// A block's residual as floats: the array itself, or, for bf16, a copy that
/// store() rounds back.
class Residual {
 public:
  Residual(View all, Range range)
      : view_(all.subview(range.offset, range.size)) {
    if (view_.dtype() == DType::kFloat32) {
      floats_ = view_.as<float>().data();
      return;
    }
    floats_ = widened_.data();
    const auto halves = view_.as<BFloat16>();
    for (std::size_t i = 0; i < halves.size(); ++i)
      floats_[i] = to_float(halves[i]);
  }

  [[nodiscard]] float* floats() noexcept { return floats_; }

  void store() {
    if (view_.dtype() == DType::kFloat32) return;
    const auto halves = view_.as<BFloat16>();
    for (std::size_t i = 0; i < halves.size(); ++i)
      halves[i] = to_bfloat16(floats_[i]);
  }

 private:
  View view_;
  float* floats_ = nullptr;
  std::array<float, 1024> widened_;  // bf16 blocks are at most this long
};

}  // namespace thinwire::compress
