// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "exchange/codec/codec.h"
#include "exchange/pipeline/pipeline.h"
#include "exchange/residuals.h"
#include "thinwire/core/buffer.h"
#include "thinwire/exchange/block_layout.h"
#include "zero/gradient_reduction.h"

namespace thinwire::zero {

/// Returns whether low-bit gradients are sent only after ranks have agreed that
/// those of all groups are finite.
[[nodiscard]] inline bool agrees_first(const ZeroOptions& options) {
  const bool skips =
      options.exchange.skip_nonfinite || options.dtype == DType::kFloat16;
  return options.wire.bits_up != 0 && options.stage == 1 && !options.overlap &&
         skips;
}

/// Gradients in few bits, with error feedback, on their way up to the owners. A
/// block is a cell of the grid within one parameter, and r is the reciprocal of
/// the loss scale:
///   c = g * r + e,  q of c,  e = c - q * step;  owner: mean of q * step.
/// Backwards before the last are added to the residuals, which must then be
/// fp32: e = e + g * r. Derived classes form g.
class EncodedGradients : public GradientReduction {
 public:
  /// Makes the reduction of flat ranks.
  explicit EncodedGradients(const ReductionSettings& settings)
      : EncodedGradients(settings, settings.comm, settings.shards.owners()) {}

  void begin(exchange::Backward which, DType gradients) override;
  void finish() override;
  void abandon() noexcept override { pipeline_.drop(); }
  /// Returns means in fp32, without the loss scale.
  [[nodiscard]] View piece(std::size_t bucket) override;
  [[nodiscard]] double divisor(double /*loss_scale*/) const noexcept override {
    return 1;
  }
  bool settle(bool is_applied) override;
  void begin_window() override;
  [[nodiscard]] EncodedGradients* low_bit() noexcept override { return this; }
  /// Replaces send(). Sets this rank's piece to 0, and to NaN in the range.
  void withhold(std::size_t bucket, Range nonfinite);

  /// Returns the residuals of parts(), bucket after bucket.
  [[nodiscard]] ConstView residuals() const noexcept {
    return residuals_.values();
  }
  /// Returns the ranges, one per bucket, that have residuals on this rank.
  [[nodiscard]] const std::vector<Range>& parts() const noexcept {
    return parts_;
  }
  /// Sets the residuals: as many elements of the same dtype, or none for 0.
  void set_residuals(Buffer&& residuals);

 protected:
  /// Makes a reduction in which records travel between `peers`. These own the
  /// pieces of `owners`, and each has a gradient of all of them.
  EncodedGradients(const ReductionSettings& settings, comm::Communicator& peers,
                   std::span<const int> owners);

  [[nodiscard]] const ReductionSettings& settings() const noexcept {
    return settings_;
  }
  [[nodiscard]] const ShardBucket& bucket(std::size_t b) const {
    return settings_.shards.buckets()[b];
  }
  /// Adds values to the residuals of a bucket's elements; none if all are 0.
  void add(std::size_t bucket, Range elements, ConstView values);
  /// Sends a bucket. Collective, queued. Without values, add() had all of them.
  void encode_and_send(std::size_t bucket, ConstView values);
  /// Returns whether this window has several backwards.
  [[nodiscard]] bool adds_up() const noexcept { return adds_up_; }
  /// Returns whether this backward is the window's last one.
  [[nodiscard]] bool is_last() const noexcept { return backward_.is_last; }

 private:
  [[nodiscard]] exchange::RunSteps steps();
  [[nodiscard]] float reciprocal() const {
    return static_cast<float>(1 / settings_.scale.value());
  }

  const ReductionSettings settings_;
  const std::size_t rank_;
  std::vector<Range> parts_;
  const exchange::BlockLayout blocks_;
  const exchange::ValueCodec& codec_;
  exchange::ResidualSide residuals_;
  Buffer means_;                      // of this rank's shard
  std::vector<std::size_t> mean_at_;  // per block, in means_; its owner's
  // Of the bucket that is encoded, which begins at an element; empty: none.
  ConstView values_;
  std::size_t values_begin_ = 0;
  exchange::Backward backward_;
  bool adds_up_ = false;
  bool has_changed_ = false;     // residuals in this window
  exchange::Pipeline pipeline_;  // last: what is in flight uses the rest
};

}  // namespace thinwire::zero
