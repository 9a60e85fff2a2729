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

/// A block's residual as floats: the array itself or, if it is bf16, a copy
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

/// One rank's residuals of one way: what encoding has lost of blocks, which is
/// added to them when they are next encoded. If a run can be dropped, it ends
/// with accept() or drop(). A run writes residuals in one of four ways: to
/// fresh memory, over the old ones, over old ones that are saved first, or
/// block by block with keep().
class ResidualSide {
 public:
  /// Holds the residuals, initially 0, of the blocks of a layout whose servers
  /// are [begin, end), one after the other. If it `can_drop`, a run writes
  /// fresh residuals, which take as much memory again. Otherwise it writes over
  /// them, and a run that is dropped leaves 0. The layout must outlive it.
  ResidualSide(const BlockLayout& layout, std::size_t begin, std::size_t end,
               DType dtype, bool can_drop);
  /// Refers to `values`, part of a larger array: block b is at[b], which may be
  /// empty. After write_to(), runs write fresh residuals to the memory that it
  /// was given.
  ResidualSide(View values, std::vector<Range> at);
  ResidualSide() = default;  ///< Of no blocks.
  ResidualSide(ResidualSide&&) = default;
  ResidualSide& operator=(ResidualSide&&) = default;

  void write_to(Buffer& fresh);

  // ---- in a run
  /// Returns the residual of a block, and where its error is written. `values`
  /// and `factor` are unset.
  [[nodiscard]] kernels::QuantizedSum sum(std::size_t block) const {
    return {.residual = part(values_, at_, block),
            .error = writes_fresh() ? part(fresh_, fresh_at(), block)
                                    : part(values_, at_, block)};
  }
  /// Returns the residual of a block for kernels::sign_encode(), which writes
  /// over it.
  [[nodiscard]] KeptResidual kept(std::size_t block);
  /// Makes the run update residuals in place; drop() restores the saved values.
  /// Has no effect if runs cannot be dropped.
  void save_before();
  /// Discards the saved values of a run that has changed nothing.
  void forget_before() noexcept { is_saved_ = false; }
  /// Keeps a block's error at once, for runs that do not agree on their end.
  void keep(std::size_t block, ConstView error) const noexcept;
  /// The run counts. Threads of a pool copy what write_to() has received.
  void accept() noexcept;
  void accept(ThreadPool& pool);
  /// The run does not count. Returns true if residuals were set to 0.
  bool drop() noexcept;

  // ---- between runs
  [[nodiscard]] View values() const noexcept { return values_; }
  /// Moves the values out, for the owner of all of them.
  [[nodiscard]] Buffer release() noexcept { return std::move(own_); }
  /// Replaces the values by errors e.
  void set(Buffer&& values) noexcept;
  void clear() noexcept;
  /// Adds weight * values to e of a block, for its elements that take part.
  void add(std::size_t block, const float* from, float weight,
           const ActiveMask& active);
  /// Computes the error e of every block; `active` is the mask that it was
  /// encoded with.
  void form_errors(const ActiveMask& active);
  /// Computes e of the blocks with elements that either mask leaves out:
  /// `before` is the mask that they were encoded with.
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
  std::vector<Range> fresh_at_;  // per block, in fresh_; empty: the same
  View values_;                  // e, once errors have been formed
  View fresh_;                   // or the values before the run
  Buffer own_;                   // unless values_ are those of another owner
  Buffer own_fresh_;
  std::vector<float> scales_;  // per block, for kept()
  std::vector<float> fresh_scales_;
  bool can_drop_ = false;
  bool is_saved_ = false;  // fresh_ has the values before the run
};

/// One rank's residuals: the worker's of the blocks of its piece (of all blocks
/// if flat), the server's of the blocks that it serves.
struct Residuals {
  /// All are 0; `dtype` is one that require_options() allows.
  Residuals(const BlockLayout& layout, const Places& places, DType dtype,
            bool can_drop)
      : worker(layout, places.first, places.end(), dtype, can_drop),
        server(layout, places.own, places.own + 1, dtype, can_drop) {}

  Residuals(ResidualSide of_worker, ResidualSide of_server)
      : worker(std::move(of_worker)), server(std::move(of_server)) {}

  void accept() noexcept;
  void accept(ThreadPool& pool);
  void drop() noexcept;
  void clear() noexcept;
  /// Throws Error(kCorruptCheckpoint) naming the array that does not fit,
  /// before anything changes.
  void load(ConstView worker_error, ConstView server_error);
  void take(Buffer&& worker_error, Buffer&& server_error);

  ResidualSide worker;
  ResidualSide server;
};

}  // namespace thinwire::exchange
