// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "exchange/records/record_route.h"
#include "thinwire/core/buffer.h"
#include "thinwire/exchange/block_layout.h"
#include "zero/gradient_reduction.h"

namespace thinwire::zero {

/// Gradients in few bits stay where they are until ranks have agreed that those
/// of all groups are finite.
[[nodiscard]] inline bool agrees_first(const ZeroOptions& options) {
  const bool skips =
      options.exchange.skip_nonfinite || options.dtype == DType::kFloat16;
  return options.wire.bits_up != 0 && options.stage == 1 && !options.overlap &&
         skips;
}

/// Gradients in 4 or 8 bits, with error feedback: per block, a cell of the grid
/// within one parameter, r the reciprocal of the loss scale,
///   c = g * r + e,  q of c,  e = c - q * step;  owner: mean of q * step.
/// Backwards before the last are added to the residuals, which have to be fp32:
/// e = e + g * r. How g comes to be is told by the classes derived from this.
class LowBitGradients : public GradientReduction {
 public:
  /// Flat.
  explicit LowBitGradients(const ReductionSettings& settings)
      : LowBitGradients(settings, settings.comm, settings.shards.owners()) {}
  ~LowBitGradients() override { LowBitGradients::abandon(); }

  void begin(exchange::Backward which, DType gradients) override;
  void finish() override;
  void abandon() noexcept override;
  /// Means in fp32, without the loss scale.
  [[nodiscard]] View piece(std::size_t bucket) override;
  [[nodiscard]] double divisor(double /*loss_scale*/) const noexcept override {
    return 1;
  }
  bool settle(bool is_applied) override;
  void begin_window() override;
  [[nodiscard]] LowBitGradients* low_bit() noexcept override { return this; }
  /// Instead of send(): this rank's piece becomes 0, and NaN in the range.
  void withhold(std::size_t bucket, Range nonfinite);

  /// Of the elements of all buckets, bucket after bucket.
  [[nodiscard]] ConstView residuals() const noexcept {
    return residuals_.view();
  }
  /// What of each bucket this rank has residuals of.
  [[nodiscard]] const std::vector<Range>& parts() const noexcept {
    return parts_;
  }
  /// Of as many elements of the same dtype; none: all 0.
  void set_residuals(Buffer&& residuals);

 protected:
  /// Records travel between `peers`, which own `owners`' pieces; each has a
  /// gradient of all of these.
  LowBitGradients(const ReductionSettings& settings, comm::Communicator& peers,
                  std::span<const int> owners);

  [[nodiscard]] const ReductionSettings& settings() const noexcept {
    return settings_;
  }
  [[nodiscard]] const ShardBucket& bucket(std::size_t b) const {
    return settings_.shards.buckets()[b];
  }
  /// Of elements of one bucket; no values: all are 0.
  void add(std::size_t bucket, Range elements, ConstView values);
  /// Collective, queued; no values: all have been added.
  void encode_and_send(std::size_t bucket, ConstView values);
  /// This window has several backwards.
  [[nodiscard]] bool adds_up() const noexcept { return adds_up_; }
  /// This backward is its last.
  [[nodiscard]] bool is_last() const noexcept { return backward_.is_last; }

 private:
  // A bucket on its way.
  struct Slot {
    Buffer records;
    Buffer received;
    std::size_t bucket = 0;
    comm::Work work{};
  };

  void encode(Slot& slot, std::size_t bucket, ConstView values);
  void finish_oldest();
  void decode(const Slot& slot);
  [[nodiscard]] float reciprocal() const {
    return static_cast<float>(1 / settings_.scale.value());
  }

  const ReductionSettings settings_;
  const std::size_t rank_;
  std::vector<Range> parts_;
  const exchange::BlockLayout blocks_;
  const exchange::RecordRoute route_;

  const bool keeps_;  // residuals of a skipped step: they are as before it
  Buffer residuals_;
  Buffer others_;  // those after this step, or before it: see settle()
  Buffer means_;   // of this rank's shard
  exchange::Backward backward_;
  bool adds_up_ = false;
  bool has_changed_ = false;  // residuals, or those that come after
  std::vector<Slot> slots_;
  std::size_t first_ = 0;  // the oldest one of `count_` on their way
  std::size_t count_ = 0;
};

}  // namespace thinwire::zero
