// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "exchange/places.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/active_mask.h"
#include "thinwire/exchange/block_layout.h"

namespace thinwire::exchange {

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
  float& scale;  ///< As in kernels::SignBlock: 0 where `values` are e itself.

  void sent_with(float sent) const {
    scale = values.dtype() == DType::kFloat32 ? sent : 0;
  }
};

/// One rank's residuals: the worker's for the blocks of its piece (flat: for
/// every block), the server's for the blocks that it serves. The layout must
/// outlive it.
class Residuals {
 public:
  /// All 0; `dtype` as require_options() allows it.
  Residuals(const BlockLayout& layout, const Places& places, DType dtype);

  /// e, of a block that has not been kept, or whose error has been formed.
  [[nodiscard]] Residual worker(std::size_t block) {
    return {worker_.values.view(), worker_range(block)};
  }
  [[nodiscard]] Residual server(std::size_t block) {
    return {server_.values.view(), server_range(block)};
  }

  [[nodiscard]] KeptResidual kept_worker(std::size_t block) {
    return worker_.kept(block, worker_range(block));
  }
  [[nodiscard]] KeptResidual kept_server(std::size_t block) {
    return server_.kept(block, server_range(block));
  }

  /// Forms e of every block; `active` is what they were encoded with.
  void form_worker_errors(const ActiveMask& active);
  void form_server_errors(const ActiveMask& active);
  /// The same of both, for the blocks with elements that either mask leaves
  /// out: what they keep holds under the mask that they were encoded with.
  void form_errors_between(const ActiveMask& before, const ActiveMask& after);

  /// residual += weight * values, for the block's elements that take part.
  /// Throws Error(kInvalidArgument) if there is no such block, or if another
  /// rank encodes it.
  void add_to_worker(std::size_t block, const float* values, float weight,
                     const ActiveMask& active);

  /// They are kept as `from` keeps them, of which nothing else is copied.
  void copy_worker(std::size_t block, const Residuals& from) {
    copy(worker_, from.worker_, block, worker_range(block));
  }
  void copy_server(std::size_t block, const Residuals& from) {
    copy(server_, from.server_, block, server_range(block));
  }

  /// What is in memory: e where errors have been formed.
  [[nodiscard]] ConstView worker_view() const noexcept {
    return worker_.values.view();
  }
  [[nodiscard]] ConstView server_view() const noexcept {
    return server_.values.view();
  }
  void clear() noexcept;
  /// Throws Error(kCorruptCheckpoint) naming the array that does not fit,
  /// before anything changes.
  void load(ConstView worker, ConstView server);
  void take(Buffer&& worker, Buffer&& server);
  /// Gives e of both sides away, whose errors have been formed; only the
  /// destructor may follow.
  [[nodiscard]] std::pair<Buffer, Buffer> release() {
    return {std::move(worker_.values), std::move(server_.values)};
  }

 private:
  // Of one side of the exchange.
  struct Side {
    [[nodiscard]] KeptResidual kept(std::size_t block, Range range) {
      return {values.view().subview(range.offset, range.size), scales[block]};
    }

    Buffer values;
    std::vector<float> scales;  // per block
  };

  static void copy(Side& to, const Side& from, std::size_t block, Range range);
  [[nodiscard]] Range worker_range(std::size_t block) const {
    return {worker_offset_[block], layout_->blocks()[block].residual.size};
  }
  [[nodiscard]] Range server_range(std::size_t block) const {
    return {server_offset_[block], layout_->blocks()[block].residual.size};
  }
  [[nodiscard]] bool serves(std::size_t block) const {
    return static_cast<std::size_t>(layout_->blocks()[block].server) ==
           places_.own;
  }
  [[nodiscard]] bool encodes(std::size_t block) const {
    return places_.has(layout_->blocks()[block]);
  }

  const BlockLayout* layout_;
  Places places_;
  Side worker_;
  Side server_;
  // Per block; 0 where it is another rank's.
  std::vector<std::size_t> worker_offset_;
  std::vector<std::size_t> server_offset_;
};

}  // namespace thinwire::exchange
