// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "exchange/pipeline/places.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/active_mask.h"
#include "thinwire/exchange/block_layout.h"
#include "thinwire/kernels/quantize.h"

namespace thinwire::exchange {

/// A block's residual in fp32: the array itself or, if it is bf16, a copy that
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

/// A block's residual in the form that kernels::sign_encode() keeps.
struct KeptResidual {
  View values;
  float& scale;  ///< Scale of kernels::SignBlock, or 0 if `values` holds e.

  void sent_with(float sent) const {
    scale = values.dtype() == DType::kFloat32 ? sent : 0;
  }
};

/// One rank's residuals in one direction: the errors of encoded blocks, which
/// are added when the blocks are next encoded. If a run can be dropped, it ends
/// with accept() or drop(). A run writes residuals to fresh memory, over the
/// old values (which may be saved first), or block by block with keep().
class ResidualSide {
 public:
  /// Holds the residuals, initially 0, of the blocks that servers [begin, end)
  /// of a layout serve. If `can_drop`, a run writes fresh residuals, which
  /// doubles the memory. Otherwise it overwrites them, and a dropped run leaves
  /// 0. The layout must outlive this object.
  ResidualSide(const BlockLayout& layout, std::size_t begin, std::size_t end,
               DType dtype, bool can_drop);
  /// Refers to `values`, part of a larger array, in which at[b] is block b's
  /// range and may be empty. After write_to(), runs write fresh residuals to
  /// the memory given there.
  ResidualSide(View values, std::vector<Range> at);
  ResidualSide() = default;  ///< Has no blocks.
  ResidualSide(ResidualSide&&) = default;
  ResidualSide& operator=(ResidualSide&&) = default;

  void write_to(Buffer& fresh);

  // ---- in a run
  /// Returns a block's residual and the destination of its error. `values` and
  /// `factor` are not set.
  [[nodiscard]] kernels::QuantizedSum sum(std::size_t block) const {
    return {.residual = part(values_, at_, block),
            .error = writes_fresh() ? part(fresh_, fresh_at(), block)
                                    : part(values_, at_, block)};
  }
  /// Returns a block's residual for kernels::sign_encode(), which overwrites
  /// it. The run cannot be dropped.
  [[nodiscard]] KeptResidual kept(std::size_t block) {
    return {part(values_, at_, block), scales_[block]};
  }
  /// Saves the residuals, so that the run can update them in place and drop()
  /// can restore them. Has no effect if runs cannot be dropped.
  void save_before();
  /// Discards the values that save_before() saved, after a run without changes.
  void forget_before() noexcept { is_saved_ = false; }
  /// Replaces a block's residual at once, for runs whose end the ranks do not
  /// agree on.
  void keep(std::size_t block, ConstView error) const noexcept;
  /// Ends a run and keeps its residuals. With a pool, its threads copy
  /// residuals to the memory given to write_to().
  void accept() noexcept;
  void accept(ThreadPool& pool);
  /// Discards the residuals of a run. Returns true if this has set them to 0.
  bool drop() noexcept;

  // ---- between runs
  [[nodiscard]] View values() const noexcept { return values_; }
  /// Moves the values out. Requires that this object owns all of them.
  [[nodiscard]] Buffer release() noexcept { return std::move(own_); }
  /// Replaces the residuals with the errors e.
  void set(Buffer&& values) noexcept;
  void clear() noexcept;
  /// Adds weight * values to e of a block, for its active elements.
  void add(std::size_t block, const float* from, float weight,
           const ActiveMask& active);
  /// Computes the error e of every block. `active` is the mask with which the
  /// blocks were encoded.
  void form_errors(const ActiveMask& active);
  /// Computes e of the blocks in which either mask excludes elements. `before`
  /// is the mask with which they were encoded.
  void form_errors_between(const ActiveMask& before, const ActiveMask& after);

 private:
  [[nodiscard]] static View part(View all, const std::vector<Range>& at,
                                 std::size_t block) {
    return all.subview(at[block].offset, at[block].size);
  }
  [[nodiscard]] bool writes_fresh() const noexcept {
    return can_drop_ && !is_saved_;
  }
  [[nodiscard]] const std::vector<Range>& fresh_at() const noexcept {
    return fresh_at_.empty() ? at_ : fresh_at_;
  }
  void form_error(std::size_t block, const std::uint32_t* active);
  void keep_fresh(std::size_t block) const noexcept;
  void swap_fresh() noexcept;

  const BlockLayout* layout_ = nullptr;
  std::vector<Range> at_;        // per block, in values_
  std::vector<Range> fresh_at_;  // per block, in fresh_; empty if equal to at_
  View values_;                  // e, once errors have been formed
  View fresh_;                   // new residuals, or the values before the run
  Buffer own_;                   // empty if another object owns values_
  Buffer own_fresh_;
  std::vector<float> scales_;  // per block, for kept()
  bool can_drop_ = false;
  bool is_saved_ = false;  // whether fresh_ holds the values before the run
};

/// One rank's residuals: the worker's, for the blocks of its piece (all blocks
/// if flat), and the server's, for the blocks that it serves.
struct Residuals {
  /// Sets all residuals to 0. `dtype` must pass require_options(). A run
  /// overwrites them, so that it cannot be dropped.
  Residuals(const BlockLayout& layout, const Places& places, DType dtype)
      : worker(layout, places.first, places.end(), dtype, /*can_drop=*/false),
        server(layout, places.own, places.own + 1, dtype, /*can_drop=*/false) {}

  Residuals(ResidualSide of_worker, ResidualSide of_server)
      : worker(std::move(of_worker)), server(std::move(of_server)) {}

  void accept() noexcept;
  void accept(ThreadPool& pool);
  void drop() noexcept;
  void clear() noexcept;
  /// Throws Error(kCorruptCheckpoint) with the name of an array that does not
  /// fit, before anything changes.
  void load(ConstView worker_error, ConstView server_error);
  void take(Buffer&& worker_error, Buffer&& server_error);

  ResidualSide worker;
  ResidualSide server;
};

}  // namespace thinwire::exchange
