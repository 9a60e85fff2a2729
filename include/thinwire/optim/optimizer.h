// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/view.h"

namespace thinwire::optim {

/// How ranks averaged in a step.
enum class Phase {
  kExact,       ///< Gradients, in full precision.
  kCompressed,  ///< Momentum, in few bits per element.
  kLocal,       ///< Not at all: parameters differ until the next exchange.
};

/// "exact", "compressed", "local".
[[nodiscard]] std::string_view to_string(Phase phase) noexcept;

/// What one step did. The same on all ranks but for the times.
struct StepReport {
  /// False: a gradient was not finite on some rank, and nothing has changed on
  /// any rank.
  bool applied = true;
  /// The lowest rank whose gradient was not finite, where that is known; -1.
  /// Of a step that was applied: that rank left out local steps since the last
  /// exchange.
  int nonfinite_rank = -1;
  Phase phase = Phase::kExact;
  /// L2 norm of the averaged gradient before clipping; in compressed steps the
  /// calibrated estimate of it.
  double grad_norm = 0;
  bool grad_norm_is_estimate = false;
  /// What the gradient was multiplied by to keep to max_grad_norm; 1: nothing.
  double clip_factor = 1;
  std::uint64_t bytes_sent = 0;   ///< By this rank to others, in this step.
  std::uint64_t collectives = 0;  ///< Issued in this step.
  double seconds = 0;             ///< Of the whole step.
  double exchange_seconds = 0;    ///< Of it, spent waiting for other ranks.
};

/// Collective: local gradients in, updated parameters out. An optimizer owns
/// its communication and its phases; it is handed local gradients in each of
/// them. Flat arrays are laid out by the ParameterLayout given at construction.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Collective, done on return. Updates `params` (fp32, layout.size()
  /// elements, equal on all ranks) in place from `grads`, this rank's fp32
  /// gradient of the same size, whose contents are unspecified afterwards.
  /// Throws Error(kInvalidArgument) on a wrong size or dtype, before anything
  /// changes; Error(kCommFailure) if a peer is lost, after which this object
  /// may only be destroyed.
  virtual StepReport step(View params, View grads) = 0;

  /// Collective: makes parameters equal on all ranks, where the optimizer lets
  /// them differ between exchanges (0/1 Adam). To be called before evaluation
  /// and saving. Exchanges nothing where they are equal already.
  virtual void synchronize(View params);

  /// Steps that count: skipped ones do not.
  [[nodiscard]] virtual std::int64_t steps() const noexcept = 0;
  /// Steps skipped because a gradient was not finite.
  [[nodiscard]] virtual std::int64_t skipped_steps() const noexcept = 0;
  /// How the next step will average.
  [[nodiscard]] virtual Phase phase() const noexcept = 0;

  /// Step size of one group from the next step on; local, so all ranks must do
  /// the same. Throws Error(kInvalidArgument) unless finite and >= 0, and for
  /// a group that does not exist.
  virtual void set_learning_rate(std::size_t group, double learning_rate) = 0;
  [[nodiscard]] virtual double learning_rate(std::size_t group) const = 0;
  /// The same for every group.
  void set_learning_rate(double learning_rate);
  [[nodiscard]] virtual std::size_t num_groups() const noexcept = 0;

  /// All that a continued run needs, copied; local. What differs from rank to
  /// rank (residuals) is this rank's.
  [[nodiscard]] virtual StateDict state_dict() const = 0;
  /// Local; every rank loads what it saved. The next step continues bit-equal.
  /// Throws Error(kCorruptCheckpoint) naming what does not fit, before anything
  /// changes.
  virtual void load_state_dict(const StateDict& state) = 0;
};

}  // namespace thinwire::optim
