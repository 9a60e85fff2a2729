// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "exchange/gradient_window.h"
#include "precision/loss_scale.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"
#include "thinwire/zero/shard_layout.h"
#include "thinwire/zero/zero_optimizer.h"

namespace thinwire::zero {

/// How gradients of one group of ranks are reduced. All that it refers to
/// outlives what is made of it.
struct ReductionSettings {
  comm::Communicator& comm;
  const ShardLayout& shards;
  std::span<const Range> units;  ///< The parameters of the shards.
  const ZeroOptions& options;
  const precision::LossScale& scale;
  ThreadPool& pool;
  /// Ranks over which the mean is taken: more than those of the communicator
  /// for experts.
  int batch_ranks = 1;
};

class LowBitGradients;

/// One window's gradients of one group of ranks on their way to their owners,
/// reduced bucket by bucket while others still come. The window says when.
///
/// Whole, at stage 1: in memory with a place for every element. Handed over one
/// by one, at stage 2: copied into memory of a bucket, which goes round. A call
/// may wait for buckets that have been sent, whose reduction ends by itself.
class GradientReduction {
 public:
  GradientReduction() = default;
  virtual ~GradientReduction() = default;
  GradientReduction(const GradientReduction&) = delete;
  GradientReduction& operator=(const GradientReduction&) = delete;

  /// One by one; `gradients`: the dtype in which they come.
  virtual void begin(exchange::Backward /*which*/, DType /*gradients*/) {}
  /// One by one; part.bucket is one of this group's.
  virtual void store(const exchange::GradientPart& /*part*/) {}
  /// Collective, queued: the bucket's elements of `whole` are final, and
  /// unspecified afterwards; one by one, where `whole` is empty: all of the
  /// bucket has been stored. False: no other rank can have seen them yet.
  virtual bool send(std::size_t bucket, View whole) = 0;
  /// Waits for everything.
  virtual void finish() = 0;
  /// Like finish(), for cleanup after a failure; ignores errors.
  virtual void abandon() noexcept = 0;
  /// After finish(): the reduced elements of this rank's piece of a bucket.
  [[nodiscard]] virtual View piece(std::size_t bucket) = 0;
  /// What they are to be divided by to get the mean of gradients that came
  /// multiplied by `loss_scale`.
  [[nodiscard]] virtual double divisor(double loss_scale) const noexcept = 0;

  /// The step has taken them, or was skipped. True: residuals became 0.
  virtual bool settle(bool /*is_applied*/) { return false; }
  /// After a step, or a backward that failed before anything was sent.
  virtual void begin_window() = 0;
  /// Itself, if gradients travel in few bits; else null.
  [[nodiscard]] virtual LowBitGradients* low_bit() noexcept { return nullptr; }

 protected:
  // One that fills and one that is on its way.
  static constexpr std::size_t kSlots = 2;
};

}  // namespace thinwire::zero
