// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "precision/loss_scale.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/gradient_window.h"
#include "thinwire/zero/shard_layout.h"
#include "thinwire/zero/zero_optimizer.h"

namespace thinwire::zero {

/// Settings of the reduction of one group's gradients. All references must
/// outlive the reduction.
struct ReductionSettings {
  comm::Communicator& comm;
  const ShardLayout& shards;
  std::span<const Range> units;  ///< Parameters of the shards.
  const ZeroOptions& options;
  const precision::LossScale& scale;
  ThreadPool& pool;
  /// Number of ranks over which the mean is taken. With experts it exceeds the
  /// communicator's size.
  int batch_ranks = 1;
};

class EncodedGradients;

/// Reduces one group's gradients to their owners, bucket by bucket, during one
/// window.
///
/// At stage 1, an array holds all gradients. At stage 2, gradients are passed
/// one by one and copied into the memory of a bucket, which is reused. A call
/// may wait for buckets that have been sent, whose reduction needs no other
/// call.
class GradientReduction {
 public:
  GradientReduction() = default;
  virtual ~GradientReduction() = default;
  GradientReduction(const GradientReduction&) = delete;
  GradientReduction& operator=(const GradientReduction&) = delete;

  /// Begins a backward of stage 2, whose gradients have this dtype.
  virtual void begin(exchange::Backward /*which*/, DType /*gradients*/) {}
  /// Stores a part at stage 2. part.bucket is one of this group's buckets.
  virtual void store(const exchange::GradientPart& /*part*/) {}
  /// Reduces a bucket. At stage 1, its elements of `whole` must be final, and
  /// are unspecified afterwards. At stage 2 `whole` is empty, and the bucket
  /// has been stored. Returns whether another rank may have received it.
  /// Collective, queued.
  virtual bool send(std::size_t bucket, View whole) = 0;
  /// Waits for all buckets.
  virtual void finish() = 0;
  /// Like finish(), for cleanup after a failure; ignores errors.
  virtual void abandon() noexcept = 0;
  /// Returns the reduced elements of this rank's piece of a bucket, after
  /// finish().
  [[nodiscard]] virtual View piece(std::size_t bucket) = 0;
  /// Returns the divisor that turns piece() into the mean of gradients
  /// multiplied by `loss_scale`.
  [[nodiscard]] virtual double divisor(double loss_scale) const noexcept = 0;

  /// Ends a step, which was either applied or skipped. Returns whether
  /// residuals were set to 0.
  virtual bool settle(bool /*is_applied*/) { return false; }
  /// Begins the next window, after a step or after a backward that failed
  /// before any bucket was sent.
  virtual void begin_window() = 0;
  /// Returns this object if it is low-bit, otherwise null.
  [[nodiscard]] virtual EncodedGradients* low_bit() noexcept { return nullptr; }

 protected:
  // one that is filled and one in flight
  static constexpr std::size_t kSlots = 2;
};

}  // namespace thinwire::zero
