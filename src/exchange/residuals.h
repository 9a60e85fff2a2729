// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "exchange/records/places.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/active_mask.h"
#include "thinwire/exchange/block_layout.h"

namespace thinwire::exchange {

/// A block's residual as floats: the array itself or, if it has bf16, a copy
/// that store() rounds back.
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
  Residual(const Residual&) = delete;  // floats_ may point into it
  Residual& operator=(const Residual&) = delete;

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

/// A block's residual as kernels::sign_encode() keeps it.
struct KeptResidual {
  View values;
  float& scale;  ///< That of kernels::SignBlock; 0 if `values` are e.

  void sent_with(float sent) const {
    scale = values.dtype() == DType::kFloat32 ? sent : 0;
  }
};

/// One rank's residuals: the worker's of the blocks of its piece (of all blocks
/// if flat), the server's of the blocks that it serves. The layout must outlive
/// it.
struct Residuals {
  /// One of the two.
  class Side {
   public:
    /// Holds the blocks whose servers are [begin, end); all are 0.
    Side(const BlockLayout& layout, std::size_t begin, std::size_t end,
         DType dtype);

    [[nodiscard]] KeptResidual kept(std::size_t block) {
      const Range& at = ranges_[block];
      return {values.view().subview(at.offset, at.size), scales_[block]};
    }
    /// Computes the error e of every block; `active` is the mask that it was
    /// encoded with.
    void form_errors(const ActiveMask& active);
    /// Computes e of the blocks with elements that either mask leaves out:
    /// `before` is the mask that they were encoded with.
    void form_errors_between(const ActiveMask& before, const ActiveMask& after);
    /// Adds weight * values to e of a block, for its elements that take part.
    void add(std::size_t block, const float* from, float weight,
             const ActiveMask& active);
    /// Keeps a block as `from` keeps it.
    void copy(std::size_t block, const Side& from);
    /// Makes `values` the errors e of all blocks themselves.
    void now_errors() noexcept;

    Buffer values;  ///< e, once errors have been formed.

   private:
    void form_error(std::size_t block, const std::uint32_t* active);

    const BlockLayout* layout_;
    std::vector<Range> ranges_;  // per block; empty if it has none
    std::vector<float> scales_;  // per block
  };

  /// All are 0; `dtype` is one that require_options() allows.
  Residuals(const BlockLayout& layout, const Places& places, DType dtype)
      : worker(layout, places.first, places.end(), dtype),
        server(layout, places.own, places.own + 1, dtype) {}

  void clear() noexcept;
  /// Throws Error(kCorruptCheckpoint) naming the array that does not fit,
  /// before anything changes.
  void load(ConstView worker_error, ConstView server_error);
  void take(Buffer&& worker_error, Buffer&& server_error);

  Side worker;
  Side server;
};

}  // namespace thinwire::exchange
