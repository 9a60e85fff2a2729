// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "exchange/codec/codec.h"
#include "exchange/pipeline/pipeline.h"
#include "exchange/residuals.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/buffer.h"
#include "thinwire/exchange/block_layout.h"
#include "zero/gradient_reduction.h"
#include "zero/wire/filling_buckets.h"

namespace thinwire::zero {

/// Returns whether low-bit gradients are sent only after the ranks have agreed
/// that the gradients of all groups are finite.
[[nodiscard]] inline bool agrees_first(const ZeroOptions& options) {
  const bool skips =
      options.exchange.skip_nonfinite || options.dtype == DType::kFloat16;
  return options.wire.bits_up != 0 && options.stage == 1 && !options.overlap &&
         skips;
}

/// Sends low-bit gradients, with error feedback, up to their owners. A block is
/// a cell of the grid within one parameter, and r is the reciprocal of the loss
/// scale:
///  c = g * r + e,  q of c,  e = c - q * step;  owner: mean of q * step.
/// At stage 1, whole gradients are encoded in place. At stage 2, they fill
/// buckets. If a window has several backwards, those before the last are added
/// to the residuals, which must then be fp32: e = e + g * r.
///
/// With hierarchical ranks, each host first averages the gradients of its ranks
/// in every backward, bucket by bucket, in fp32 and unrounded. A local rank
/// gets the part that the ranks in the same place on all hosts own, and
/// exchanges records with those ranks.
class EncodedGradients final : public GradientReduction {
 public:
  explicit EncodedGradients(const ReductionSettings& settings);
  ~EncodedGradients() override { abandon(); }

  void begin(exchange::Backward which, DType gradients) override;
  void store(const exchange::GradientPart& part) override;
  bool send(std::size_t bucket, View whole) override;
  void finish() override;
  void abandon() noexcept override;
  /// Returns means in fp32, without the loss scale.
  [[nodiscard]] View piece(std::size_t bucket) override;
  [[nodiscard]] double divisor(double /*loss_scale*/) const noexcept override {
    return 1;
  }
  bool settle(bool is_applied) override;
  void begin_window() override;
  [[nodiscard]] EncodedGradients* low_bit() noexcept override { return this; }
  /// Replaces send() for a skipped step: sets this rank's piece to 0, and to
  /// NaN in the range.
  void withhold(std::size_t bucket, Range nonfinite);

  /// Returns the residuals of parts(), one bucket after the other.
  [[nodiscard]] ConstView residuals() const noexcept {
    return residuals_.values();
  }
  /// Returns one range per bucket, for which this rank has residuals.
  [[nodiscard]] const std::vector<Range>& parts() const noexcept {
    return parts_;
  }
  /// Sets the residuals. `residuals` has the same size and dtype, or is empty,
  /// which stands for 0.
  void set_residuals(Buffer&& residuals);

 private:
  // A host's mean in flight, and the memory that it reads.
  struct HostMean {
    Buffer mean;
    Buffer memory;
    std::size_t bucket = 0;
    comm::Work work;
  };

  [[nodiscard]] const ShardBucket& bucket(std::size_t b) const {
    return settings_.shards.buckets()[b];
  }
  /// Returns the owners of the pieces that a local rank encodes.
  [[nodiscard]] std::span<const int> owners_of(int local_rank) const;
  void form_mean(std::size_t bucket, ConstView values, Buffer&& memory);
  void take_oldest_mean();
  void add(std::size_t bucket, Range elements, ConstView values);
  void encode_and_send(std::size_t bucket, ConstView values);
  [[nodiscard]] exchange::RunSteps steps();
  [[nodiscard]] float reciprocal() const {
    return static_cast<float>(1 / settings_.scale.value());
  }

  const ReductionSettings settings_;
  const std::optional<comm::HostGroups> groups_;  // empty if flat
  const std::size_t rank_;
  const exchange::BlockLayout blocks_;
  const exchange::ValueCodec& codec_;
  std::vector<Range> parts_;
  exchange::ResidualSide residuals_;
  Buffer means_;                      // for this rank's shard
  std::vector<std::size_t> mean_at_;  // per block in means_; 0 if not owned
  std::optional<FillingBuckets> filling_;  // stage 2

  // ---- the window
  exchange::Backward backward_;
  bool adds_up_ = false;      // whether the window has several backwards
  bool has_changed_ = false;  // whether residuals have changed in this window
  // Values of the bucket that is being encoded, and the index of their first
  // element. If empty, the residuals contain all values.
  ConstView values_;
  std::size_t values_begin_ = 0;
  std::array<HostMean, kSlots> host_means_;
  std::size_t first_ = 0;  // oldest of the `count_` in flight
  std::size_t count_ = 0;
  exchange::Pipeline pipeline_;
};

}  // namespace thinwire::zero
