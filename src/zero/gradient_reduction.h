// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "exchange/gradient_window.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"

namespace thinwire::zero {

/// One window's gradients of one group of ranks on their way to their owners,
/// reduced bucket by bucket while others still come. The window says when.
///
/// Whole: in memory with a place for every element. Handed over one by one:
/// copied into memory of a bucket, which goes round. A call may wait for
/// buckets that have been sent, whose reduction ends by itself.
class GradientReduction {
 public:
  GradientReduction() = default;
  virtual ~GradientReduction() = default;
  GradientReduction(const GradientReduction&) = delete;
  GradientReduction& operator=(const GradientReduction&) = delete;

  // ---- whole
  /// Collective, queued: the bucket's elements of `sums` are final; unspecified
  /// afterwards. False: no other rank can have seen them yet.
  virtual bool reduce(View sums, std::size_t bucket) = 0;

  // ---- one by one
  /// `gradients`: the dtype in which they come.
  virtual void begin(exchange::Backward which, DType gradients) = 0;
  /// part.bucket is one of this group's.
  virtual void store(const exchange::GradientPart& part) = 0;
  /// Collective, queued: all of the bucket has been stored. Returns as
  /// reduce().
  virtual bool send(std::size_t bucket) = 0;

  /// Of gradients that wait for finish(): none leaves. Instead those of this
  /// rank's pieces become 0, and NaN in the range.
  virtual void withhold(Range /*nonfinite*/) {}
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
};

}  // namespace thinwire::zero
