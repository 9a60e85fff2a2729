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
  /// They are means over the ranks, or sums: whose gradient it was is lost.
  bool is_averaged = false;
  /// Local gradients: the lowest rank that has one; -1: only the sum over the
  /// ranks is not finite.
  int rank = -1;
  std::int64_t last_good_step = 0;
};

/// The loss scale of one optimizer, and how a run ends where the scale cannot
/// fall any further. Only parameters of fp16 have one: else it is 1 for ever.
class LossScale {
 public:
  LossScale(DType params, const LossScalerOptions& options);
  LossScale(DType params, const LossScaler& scaler);

  [[nodiscard]] bool is_used() const noexcept { return is_used_; }
  [[nodiscard]] double value() const noexcept { return scaler_.scale(); }
  /// Throws Error(kInvalidArgument) as LossScaler::set_scale() and
  /// Error(kFailedPrecondition) unless it is used.
  void set(double scale);
  /// An overflow now ends the run: stop() is to answer it.
  [[nodiscard]] bool is_last_chance() const noexcept;
  /// A step has ended whose gradients were unscaled with value().
  void update(bool overflow);
  /// Collective: throws Error(kNonFinite) on all ranks, naming the first
  /// parameter concerned.
  [[noreturn]] void stop(comm::Communicator& comm,
                         const ParameterLayout& layout,
                         const NonFiniteGradients& gradients) const;

  void save(StateDict& state) const { scaler_.save(state); }
  /// Calls LossScaler::load(). Does nothing if the state has no loss scale,
  /// because its parameters were not fp16, or if no scaler is used here.
  void load_if_there(const StateDict& state);
  /// Throws Error(kCorruptCheckpoint) if a scaler is used and the state has
  /// none.
  void require_in(const StateDict& state) const;

 private:
  bool is_used_;
  LossScaler scaler_;
};

}  // namespace thinwire::precision
