// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/precision/loss_scaler.h"

namespace thinwire::precision {

/// Describes gradients that are not finite at the smallest loss scale.
struct NonFiniteGradients {
  /// The first parameter with such a gradient on this rank, or -1.
  std::int64_t first = -1;
  /// Whether gradients are sums or means over the ranks, so that the
  /// responsible rank is unknown.
  bool is_averaged = false;
  /// For local gradients, the lowest rank that has one. -1 if only the sum over
  /// the ranks is not finite.
  int rank = -1;
  std::int64_t last_good_step = 0;
};

/// The loss scale of one optimizer, which also ends a run whose scale cannot
/// fall further. It is used with fp16 parameters only, and is 1 otherwise.
class LossScale {
 public:
  LossScale(DType params, const LossScalerOptions& options);
  LossScale(DType params, const LossScaler& scaler);

  [[nodiscard]] bool is_used() const noexcept { return is_used_; }
  [[nodiscard]] double value() const noexcept { return scaler_.scale(); }
  /// Throws Error(kInvalidArgument) like LossScaler::set_scale(), and
  /// Error(kFailedPrecondition) if no scale is used.
  void set(double scale);
  /// Returns whether another overflow ends the run, so that the caller must
  /// call stop().
  [[nodiscard]] bool is_last_chance() const noexcept;
  /// Reports the end of a step whose gradients were unscaled with value().
  void update(bool overflow);
  /// Throws Error(kNonFinite) on all ranks and names the first parameter with
  /// such a gradient. Collective.
  [[noreturn]] void stop(comm::Communicator& comm,
                         const ParameterLayout& layout,
                         const NonFiniteGradients& gradients) const;

  void save(StateDict& state) const { scaler_.save(state); }
  /// Calls LossScaler::load(). Does nothing if no scaler is used here, or if
  /// the state has no loss scale because its parameters were not fp16.
  void load_if_there(const StateDict& state);
  /// Throws Error(kCorruptCheckpoint) if a scaler is used and the state has
  /// none.
  void require_in(const StateDict& state) const;

 private:
  bool is_used_;
  LossScaler scaler_;
};

}  // namespace thinwire::precision
