// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/view.h"
#include "thinwire/optim/parameter_groups.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// Kind of average that ranks compute in a step.
enum class Phase {
  kExact,       ///< Gradients, exactly or in StepReport::bits bits.
  kCompressed,  ///< Momentum in 1 bit, or the changes of an outer loop.
  kLocal,       ///< None, so parameters differ until the next exchange.
};

/// Returns "exact", "compressed" or "local".
[[nodiscard]] std::string_view to_string(Phase phase) noexcept;

/// A function that a step calls with elements whose final values it has
/// written, while it still updates others. It is called on the thread of
/// step(). It may read these elements of StepInput::params, and must not call
/// the optimizer.
using FinalRange = std::function<void(Range range)>;

/// Arguments of one step: flat arrays of layout.size() elements.
struct StepInput {
  /// Parameters in fp32, equal on all ranks; updated in place. Exact Adam also
  /// accepts fp16 and bf16.
  View params;
  /// Gradients of this rank in fp32, fp16 or bf16; unspecified after the step.
  /// Exact averages are summed in fp32. An average of 16-bit gradients is then
  /// rounded once.
  View grads;
  /// Factor by which the caller has multiplied the gradients, finite, > 0.
  /// step() divides by it before clipping and reporting.
  double loss_scale = 1;
  /// Array of fp16 or bf16 that receives the rounded parameters; may be empty.
  View low_precision{};
  /// Whether a non-finite gradient on one rank skips this step on all ranks.
  /// This overrides ExchangeOptions::skip_nonfinite, and also applies to steps
  /// that exchange nothing else (0/1 Adam's local steps).
  bool skip_if_any_rank_nonfinite = false;
  /// Whether the step reports the rank with a non-finite gradient and then
  /// leaves `grads` unchanged. Exact steps need another scalar exchange for
  /// this.
  bool finds_nonfinite = false;
  /// Function that returns the gradient norm of the whole model, if the model
  /// has further parameters; may be empty. The argument is the norm of the
  /// averaged gradient of these parameters, or its estimate in a compressed
  /// step. The result determines whether the step is clipped or skipped. Each
  /// step calls the function once, and it may be collective.
  std::function<double(double norm)> whole_norm{};
  /// Elements that the argument of whole_norm excludes, because another
  /// optimizer of the model has the same parameters and counts them. They are
  /// whole parameters of the layout, in ascending order.
  std::span<const Range> uncounted{};
  /// Function that receives ranges of `params` that are final; may be empty.
  /// Ranges do not overlap. All other elements are final when step() returns. A
  /// skipped step does not call the function. If the function throws, this
  /// object may only be destroyed.
  FinalRange final_range{};
};

/// Results of one step, equal on all ranks except for times and for counts of
/// bytes and messages. In local steps, norms are those of one worker; in an
/// outer loop this also applies to syncs.
struct StepReport {
  /// Whether the step was applied. If not, a gradient on some rank was not
  /// finite, and no parameter has changed on any rank.
  bool applied = true;
  /// The lowest rank with a non-finite gradient, or -1 if there is none or it
  /// is unknown. If the step was applied, that rank has skipped local steps
  /// since the last exchange.
  int nonfinite_rank = -1;
  Phase phase = Phase::kExact;
  /// Whether every rank passed a gradient with bitwise the same non-zero norm.
  /// In that case either the gradients have already been averaged or the ranks
  /// read the same data, so that averaging gains nothing. This is known only if
  /// ranks exchange their norms: in low-bit optimizers, except for local steps,
  /// and with finds_nonfinite. Only the first two such steps after construction
  /// report it, and only with several ranks.
  bool gradients_equal = false;
  /// L2 norm of the averaged gradient before clipping; in compressed steps a
  /// calibrated estimate.
  double grad_norm = 0;
  bool grad_norm_is_estimate = false;
  /// Factor by which clipping to max_grad_norm multiplied the gradient; 1 if it
  /// was not clipped.
  double clip_factor = 1;
  /// Norm of the ranks' mean change divided by the RMS norm of their changes,
  /// in a sync of an outer loop; otherwise 0. It is 1 if all ranks made the
  /// same change, and 1/sqrt(W) if the changes of the W workers were only
  /// noise.
  double drift = 0;
  /// Cosine between the ranks' mean change and the previous outer momentum, in
  /// a sync of an outer loop; otherwise 0. With momentum 0 this is the previous
  /// mean change. The last digits depend on the buckets.
  double rho = 0;
  /// Divisor of the gradient.
  double loss_scale = 1;
  /// Bits per element in which this exact step averaged gradients
  /// (FreezeOptions::warmup_bits, AverageOptions), or 0 if it averaged exactly.
  int bits = 0;
  /// AverageOptions::low_rank, if this step averaged gradients as low-rank
  /// products; otherwise 0.
  int low_rank = 0;
  /// Number of elements that compression excludes now, because they are masked
  /// or have had no gradient so far. Only for low-bit optimizers.
  std::size_t masked = 0;
  /// Number of outliers, which exceed their block so far that they are scaled
  /// down before they are sent. Only for low-bit optimizers.
  std::size_t heavy = 0;
  /// Number of inactive elements that this step activated by their first
  /// gradient. Only for low-bit optimizers.
  std::size_t revived = 0;
  std::uint64_t bytes_sent = 0;   ///< Sent by this rank in this step.
  std::uint64_t collectives = 0;  ///< Issued in this step.
  std::uint64_t messages = 0;     ///< Sent by this rank in this step.
  /// Part of bytes_sent that went to other hosts.
  std::uint64_t bytes_between_hosts = 0;
  /// Whether a skipped step has set residuals to 0; see zero::AfterSkip and
  /// FreezeOptions::warmup_bits.
  bool residuals_cleared = false;
  double seconds = 0;           ///< Time of the whole step.
  double exchange_seconds = 0;  ///< Time waiting for other ranks.
  /// Time with a collective in flight, including that during backward.
  double comm_busy_seconds = 0;
};

/// Progress of the training, equal on all ranks.
struct Progress {
  std::int64_t steps = 0;       ///< Number of steps without skipped ones.
  std::int64_t skipped = 0;     ///< Steps with a gradient that was not finite.
  Phase phase = Phase::kExact;  ///< Kind of average in the next step.
  /// Planned last exact step, from options or a state. In 1-bit optimizers it
  /// may be kAutoFreeze. In 0/1 Adam the variance may change up to this step.
  /// Empty if all steps are exact.
  std::optional<std::int64_t> freeze_step{};
  /// Factors by which the last step multiplied the learning rate of each
  /// parameter, in the layout's order. They are LAMB's trust ratios or, in
  /// compressed steps of 1-bit LAMB, its scaling coefficients. They are 0
  /// before the first step, and empty unless the optimizer is LAMB or 1-bit
  /// LAMB.
  std::vector<double> lamb_coeffs{};
};

/// Work of the next step() that can begin before all gradients exist.
class EarlyGradients {
 public:
  virtual ~EarlyGradients() = default;

  /// Returns whether the next step averages gradients as soon as they exist.
  /// The result is equal on all ranks.
  [[nodiscard]] virtual bool reduces() const noexcept = 0;
  /// Begins to average elements `range` of the gradients of the next step(),
  /// which must get the same `grads`. Collective, queued. All ranks must pass
  /// the same ranges in the same order, and step() averages the rest. The
  /// caller must not access these elements until step(). Throws
  /// Error(kInvalidArgument) if ranges between two steps overlap, and
  /// Error(kFailedPrecondition) unless reduces().
  virtual void reduce(View grads, Range range) = 0;
  /// Returns the ranges that reduce() accepts, in the order of the flat array.
  /// It accepts only whole ranges. If the list is empty, reduce() accepts any
  /// range on the grid of sums.
  [[nodiscard]] virtual std::vector<Range> buckets() const { return {}; }

  /// Returns whether the next step measures its gradients without averaging
  /// them.
  [[nodiscard]] virtual bool measures() const noexcept { return false; }
  /// Computes the norm of elements `range` of this rank's gradients, which
  /// step() needs before it exchanges anything. Local. `range` must be one that
  /// reduce() would accept. step() must get the same `grads`, with these
  /// elements unchanged, and measures the rest. Throws
  /// Error(kFailedPrecondition) unless measures().
  virtual void measure(ConstView grads, Range range);

  /// Blocks until reduce() and measure() no longer use the gradients. Work that
  /// is queued on the communicator given at construction may still use them.
  /// Local.
  virtual void finish() {}
  /// Discards the measurements, because the next step gets different gradients.
  virtual void forget() noexcept {}

 protected:
  /// Throws Error(kFailedPrecondition) unless reduces().
  void require_reduces() const;
  /// Throws Error(kFailedPrecondition) unless measures().
  void require_measures() const;
};

/// Steps between exchanges, during which parameters differ between ranks.
class LocalSteps {
 public:
  virtual ~LocalSteps() = default;

  /// Returns the number of local steps since the last exchange, which is equal
  /// on all ranks.
  [[nodiscard]] virtual std::int64_t steps_behind() const noexcept = 0;
  /// Makes parameters equal on all ranks. Call it before evaluation and saving.
  /// Exchanges nothing if they are already equal. Collective.
  virtual void synchronize(View params) = 0;
  /// Returns the parameters of the last exchange, which are equal on all ranks.
  /// The result is a view of `params`. If steps_behind() > 0, it views an fp32
  /// array of the same size that is valid until the next step. Local.
  [[nodiscard]] virtual ConstView exchanged_params(ConstView params) const = 0;
  /// Applies this rank's local steps again, after an adoption. Local. `params`
  /// holds the parameters of the last exchange, and receives the result.
  /// Masters are updated too. If `params` is empty, only masters are updated.
  virtual void repeat(View params) = 0;
};

/// Arguments with which step() asks a FreezeGate whether to end the exact
/// stage.
struct FreezeRequest {
  /// The exact step that would be the last. It has already been taken.
  std::int64_t step = 0;
  /// Returns the time in seconds of one compressed exchange of zeros. Changes
  /// only the counters of traffic. Collective.
  std::function<double()> time_exchange;
};
/// Returns whether the exact stage ends now. The result must be equal on all
/// ranks. Collective.
using FreezeGate = std::function<bool(const FreezeRequest& request)>;

/// End of the exact stage of a 1-bit optimizer.
class FreezeStage {
 public:
  virtual ~FreezeStage() = default;

  /// Sets the gate that step() asks, from the next step on, before it ends the
  /// exact stage of several ranks. If the gate returns false, the stage is
  /// extended by a tenth of the steps so far, at least by one. Then step() asks
  /// again. The state contains the new end as freeze_held_until. Without a gate
  /// the stage ends. All ranks must make the same call.
  virtual void set_gate(FreezeGate gate) = 0;
  /// Returns the last exact step, or 0 before the freeze.
  [[nodiscard]] virtual std::int64_t frozen_at() const noexcept = 0;
};

/// An optimizer of data-parallel training, from local gradients to updated
/// parameters. It controls its communication and its phases, in all of which
/// the caller passes local gradients. Flat arrays follow the ParameterLayout
/// given at construction.
///
/// early(), local_steps() and freeze() return null if an optimizer does not
/// support them. Their results do not change, and a wrapper returns those of
/// the wrapped optimizer.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Updates the parameters from the gradients of all ranks. Collective and
  /// blocking. Throws Error(kInvalidArgument) on a wrong size or dtype, before
  /// anything changes. Throws Error(kCommFailure) if a peer is lost; this
  /// object may then only be destroyed.
  virtual StepReport step(const StepInput& input) = 0;
  StepReport step(View params, View grads) {
    return step(StepInput{.params = params, .grads = grads});
  }

  [[nodiscard]] virtual ParameterGroups& groups() = 0;
  [[nodiscard]] const ParameterGroups& groups() const {
    return const_cast<Optimizer&>(*this).groups();
  }
  [[nodiscard]] virtual Progress progress() const = 0;
  /// Returns the norm of this rank's residual divided by that of the last
  /// exchange's result, or 0 if there is none. May read the residual once.
  /// Local.
  [[nodiscard]] virtual double residual_ratio() const { return 0; }

  [[nodiscard]] virtual EarlyGradients* early() { return nullptr; }
  /// Returns the local steps of 0/1 Adam, of 1-bit Adam with under_next_step,
  /// of OuterLoop, and of MixedPrecision with masters. Other wrappers return
  /// those of their optimizer. Otherwise returns null.
  [[nodiscard]] virtual LocalSteps* local_steps() { return nullptr; }
  [[nodiscard]] const LocalSteps* local_steps() const {
    return const_cast<Optimizer&>(*this).local_steps();
  }
  /// Returns the freeze of 1-bit Adam, lean 1-bit Adam and 1-bit LAMB;
  /// otherwise null.
  [[nodiscard]] virtual FreezeStage* freeze() { return nullptr; }
  [[nodiscard]] const FreezeStage* freeze() const {
    return const_cast<Optimizer&>(*this).freeze();
  }

  /// Sets the masters to parameters that were loaded from elsewhere,
  /// layout.size() elements of any dtype. Does nothing if there are no masters.
  /// Discards local steps since the last exchange. Throws
  /// Error(kInvalidArgument) on a wrong size. Local.
  virtual void set_masters(ConstView /*params*/) {}

  /// Describes everything that is necessary to continue a run, without copying
  /// it. Valid until the next step. copy_of() turns it into a state in memory,
  /// with this rank's residuals. Local.
  [[nodiscard]] virtual State state() const = 0;
  /// Applies the state that adopt() has checked; it cannot fail. Nothing
  /// changes until it is called. Returns one line for each part of the state
  /// that this object's options and masks have changed.
  using Adoption = std::function<Notes()>;
  /// Checks a state with the keys of copy_of(State) and takes its arrays.
  /// Local. A kSharded array must have the elements of this object's
  /// State::shard. The state may come from another number of ranks and, if
  /// possible, from another optimizer or precision. 16-bit values are widened.
  /// fp32 values are rounded to 16 bits only if the state's integer
  /// allow_rounding is 1. The caller restores the parameters. Throws
  /// Error(kCorruptCheckpoint) naming the part that does not fit.
  [[nodiscard]] virtual Adoption adopt(StateDict state) = 0;
  /// Throws Error(kCorruptCheckpoint) unless a state in memory has this layout
  /// and, if ranks keep different data, this rank.
  virtual void require_owner(const StateDict& state) const = 0;
  /// Adopts a state in memory. Local. If every rank loads its own saved state,
  /// the next step continues with the same bits. Returns the adoption's notes.
  /// Throws Error(kCorruptCheckpoint) naming the part that does not fit, before
  /// anything changes.
  virtual Notes load_state_dict(const StateDict& state);
};

/// Returns the parameters of the last exchange: those of
/// LocalSteps::exchanged_params(), or `params` if all steps exchange.
[[nodiscard]] ConstView exchanged_params(const Optimizer& optimizer,
                                         ConstView params);
/// Calls LocalSteps::synchronize(), if there are local steps. Collective.
void synchronize(Optimizer& optimizer, View params);
/// Returns LocalSteps::steps_behind(), or 0 if there are no local steps.
[[nodiscard]] std::int64_t steps_behind(const Optimizer& optimizer) noexcept;

}  // namespace thinwire::optim
