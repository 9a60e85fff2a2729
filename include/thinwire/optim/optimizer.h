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

/// Kind of the averages that ranks form in a step.
enum class Phase {
  kExact,       ///< Gradients; in StepReport::bits, if that is not 0.
  kCompressed,  ///< Momentum in 1 bit, or an outer loop's changes.
  kLocal,       ///< Nothing: parameters differ until the next exchange.
};

/// Returns "exact", "compressed" or "local".
[[nodiscard]] std::string_view to_string(Phase phase) noexcept;

/// Function that a step calls with elements whose final values it has written,
/// while it still updates others. The thread of step() calls it. The function
/// may read these elements of StepInput::params and must not call the
/// optimizer.
using FinalRange = std::function<void(Range range)>;

/// Arguments of one step: flat arrays of layout.size() elements.
struct StepInput {
  /// Parameters in fp32, equal on all ranks; updated in place. Exact Adam also
  /// accepts fp16 and bf16.
  View params;
  /// Gradients of this rank, fp32, fp16 or bf16; unspecified afterwards. Exact
  /// averages are summed in fp32. An average of 16-bit gradients is then
  /// rounded once.
  View grads;
  /// Factor by which the caller has multiplied the gradients, finite, > 0.
  /// step() divides by it before clipping and reporting.
  double loss_scale = 1;
  /// Array of fp16 or bf16 that receives the updated parameters, rounded; may
  /// be empty.
  View low_precision{};
  /// Whether a non-finite gradient on one rank skips this step on all ranks. It
  /// does so whatever ExchangeOptions::skip_nonfinite says, and also in steps
  /// that exchange nothing else (0/1 Adam's local steps).
  bool skip_if_any_rank_nonfinite = false;
  /// Whether the step reports the offending rank and then leaves `grads` as
  /// they were. Exact steps need one more scalar exchange for it.
  bool finds_nonfinite = false;
  /// Function for the gradient norm of the whole model, if that has more
  /// parameters than these; may be empty. The argument is the norm of the
  /// averaged gradient of these parameters, or its estimate in a compressed
  /// step. The result is the norm by which the step is clipped or skipped. Each
  /// step calls it once, and it may be collective.
  std::function<double(double norm)> whole_norm{};
  /// Elements that the argument of whole_norm leaves out, because another
  /// optimizer of the model has the same parameters and counts them. Whole
  /// parameters of the layout, in ascending order.
  std::span<const Range> uncounted{};
  /// Function for ranges of `params` that are final; may be empty. Ranges do
  /// not overlap. All other elements are final when step() returns. A skipped
  /// step does not call the function. If it throws, this object may only be
  /// destroyed.
  FinalRange final_range{};
};

/// Results of one step. The same on all ranks, except for times and counts of
/// bytes and messages. Norms are a worker's own in local steps, and in an outer
/// loop also in syncs.
struct StepReport {
  /// Whether the step was applied. If not, a gradient on some rank was not
  /// finite, and no parameter has changed on any rank.
  bool applied = true;
  /// The lowest rank with a non-finite gradient, or -1 if there is none or it
  /// is unknown. If the step was applied, that rank has left out local steps
  /// since the last exchange.
  int nonfinite_rank = -1;
  Phase phase = Phase::kExact;
  /// Whether every rank passed a gradient with bitwise the same non-zero norm.
  /// Then something has probably averaged them before, or the ranks read the
  /// same data, and averaging gains nothing. It is known if ranks exchange
  /// their norms: in low-bit optimizers, except for local steps, and with
  /// finds_nonfinite. Only the first two such steps after construction report
  /// it, and only with several ranks.
  bool gradients_equal = false;
  /// L2 norm of the averaged gradient before clipping. In compressed steps it
  /// is the calibrated estimate.
  double grad_norm = 0;
  bool grad_norm_is_estimate = false;
  /// Factor by which clipping to max_grad_norm multiplied the gradient; 1 for
  /// none.
  double clip_factor = 1;
  /// Norm of the ranks' mean change over the RMS norm of their own changes, in
  /// a sync of an outer loop; otherwise 0. It is 1 if ranks moved alike, and
  /// 1/sqrt(W) if all that W workers did was noise.
  double drift = 0;
  /// Cosine of the ranks' mean change and of the outer momentum before it, in a
  /// sync of an outer loop; otherwise 0. With momentum 0 that is the previous
  /// mean change. Its last digits depend on the buckets.
  double rho = 0;
  /// Divisor of the gradient.
  double loss_scale = 1;
  /// Bits per element in which this exact step averaged gradients
  /// (FreezeOptions::warmup_bits, AverageOptions); 0: otherwise.
  int bits = 0;
  /// AverageOptions::low_rank, if this step averaged gradients as low-rank
  /// products; otherwise 0.
  int low_rank = 0;
  /// Elements that compression leaves out now: masked, or without any gradient
  /// so far. Only low-bit optimizers have them.
  std::size_t masked = 0;
  /// Outliers: elements so far above their block that they are sent scaled
  /// down. Only low-bit optimizers have them.
  std::size_t heavy = 0;
  /// Inactive elements that this step activated with their first gradient. Only
  /// low-bit optimizers have them.
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
  /// Time with a collective in flight, also during backward.
  double comm_busy_seconds = 0;
};

/// State of the training; the same on all ranks.
struct Progress {
  std::int64_t steps = 0;       ///< Steps that count; skipped ones do not.
  std::int64_t skipped = 0;     ///< Steps with a gradient that was not finite.
  Phase phase = Phase::kExact;  ///< How the next step will average.
  /// Planned last exact step, from options or a state. 1-bit optimizers may
  /// have kAutoFreeze. In 0/1 Adam the variance may change up to this step.
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
  /// The same on all ranks.
  [[nodiscard]] virtual bool reduces() const noexcept = 0;
  /// Begins to average elements `range` of the gradients of the next step(),
  /// which must get the same `grads`. Collective, queued. All ranks pass the
  /// same ranges in the same order, and step() averages what is missing. The
  /// caller must not touch these elements until step(). Throws
  /// Error(kInvalidArgument) if ranges between two steps overlap, and
  /// Error(kFailedPrecondition) unless reduces().
  virtual void reduce(View grads, Range range) = 0;
  /// Returns the ranges that reduce() accepts, in the order of the flat array.
  /// It accepts only whole ones. If there are none, it accepts any range on the
  /// grid of sums.
  [[nodiscard]] virtual std::vector<Range> buckets() const { return {}; }

  /// Returns whether the next step measures its gradients without averaging
  /// them.
  [[nodiscard]] virtual bool measures() const noexcept { return false; }
  /// Computes the norm of elements `range` of this rank's gradients, which
  /// step() needs before it exchanges anything. Local. `range` must be one that
  /// reduce() would accept. step() must get the same `grads`, with these
  /// elements unchanged, and measures what is missing. Throws
  /// Error(kFailedPrecondition) unless measures().
  virtual void measure(ConstView grads, Range range);

  /// Blocks until reduce() and measure() no longer use the gradients. The
  /// communicator given at construction may still have queued work that does.
  /// Local.
  virtual void finish() {}
  /// Discards the measurements, because the next step gets other gradients.
  virtual void forget() noexcept {}

 protected:
  /// Throws Error(kFailedPrecondition) unless reduces().
  void require_reduces() const;
  /// Throws Error(kFailedPrecondition) unless measures().
  void require_measures() const;
};

/// Steps between exchanges, during which parameters differ from rank to rank.
class LocalSteps {
 public:
  virtual ~LocalSteps() = default;

  /// Returns the number of local steps since the last exchange. The same on all
  /// ranks.
  [[nodiscard]] virtual std::int64_t steps_behind() const noexcept = 0;
  /// Makes parameters equal on all ranks. Collective; call it before evaluation
  /// and saving. Exchanges nothing if they are equal already.
  virtual void synchronize(View params) = 0;
  /// Returns the parameters of the last exchange, the same on all ranks. Local.
  /// The result is a view of `params`. If steps_behind() > 0, it views an fp32
  /// array of as many elements, valid until the next step.
  [[nodiscard]] virtual ConstView exchanged_params(ConstView params) const = 0;
  /// Applies this rank's local steps again, after an adoption. Local. `params`
  /// holds the parameters of the last exchange, and receives the result.
  /// Masters are updated too. If `params` is empty, only masters are updated.
  virtual void repeat(View params) = 0;
};

/// Arguments with which step() asks a FreezeGate whether to end the exact
/// stage.
struct FreezeRequest {
  /// Exact step that would be the last one, already taken.
  std::int64_t step = 0;
  /// Collective: returns the time in seconds of one compressed exchange, of
  /// zeros. It changes nothing except counters of traffic.
  std::function<double()> time_exchange;
};
/// Returns whether the exact stage ends now. Collective; the same on all ranks.
using FreezeGate = std::function<bool(const FreezeRequest& request)>;

/// End of the exact stage of a 1-bit optimizer.
class FreezeStage {
 public:
  virtual ~FreezeStage() = default;

  /// Sets the gate that step() asks if the exact stage of several ranks would
  /// end, from the next step on. If the gate returns false, the stage is
  /// extended by a tenth of the steps so far, at least by one. Then step() asks
  /// again. The state holds the new end as freeze_held_until. Without a gate
  /// the stage ends. All ranks must make the same call.
  virtual void set_gate(FreezeGate gate) = 0;
  /// Returns the last exact step; 0 before the freeze.
  [[nodiscard]] virtual std::int64_t frozen_at() const noexcept = 0;
};

/// An optimizer of data-parallel training, from local gradients to updated
/// parameters. It owns its communication and its phases; in each of them its
/// caller passes local gradients. Flat arrays follow the ParameterLayout given
/// at construction.
///
/// Not every optimizer can do everything: early(), local_steps() and freeze()
/// return null if it cannot. Their answers do not change, and a wrapper returns
/// those of the optimizer inside.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Updates the parameters from the gradients of all ranks. Collective, done
  /// on return. Throws Error(kInvalidArgument) on a wrong size or dtype, before
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
  /// Returns the norm of this rank's residual over that of the last exchange's
  /// result; 0 if there is none. Local; may read the residual once.
  [[nodiscard]] virtual double residual_ratio() const { return 0; }

  [[nodiscard]] virtual EarlyGradients* early() { return nullptr; }
  /// Returns the local steps of 0/1 Adam, of 1-bit Adam under_next_step, of
  /// OuterLoop, and of MixedPrecision with masters. Other wrappers return their
  /// optimizer's. Otherwise null.
  [[nodiscard]] virtual LocalSteps* local_steps() { return nullptr; }
  [[nodiscard]] const LocalSteps* local_steps() const {
    return const_cast<Optimizer&>(*this).local_steps();
  }
  /// Returns the freeze of 1-bit Adam, lean or not, and of 1-bit LAMB;
  /// otherwise null.
  [[nodiscard]] virtual FreezeStage* freeze() { return nullptr; }
  [[nodiscard]] const FreezeStage* freeze() const {
    return const_cast<Optimizer&>(*this).freeze();
  }

  /// Makes masters of parameters that were loaded from elsewhere: layout.size()
  /// elements of any dtype. Local; without masters there is nothing to make.
  /// Local steps since the last exchange are discarded. Throws
  /// Error(kInvalidArgument) on a wrong size.
  virtual void set_masters(ConstView /*params*/) {}

  /// Describes all that a continued run needs, without copying it. Local, valid
  /// until the next step. copy_of() makes a state in memory of it, with this
  /// rank's residuals.
  [[nodiscard]] virtual State state() const = 0;
  /// Applies the state that adopt() has checked, and cannot fail. Unless it is
  /// called, nothing changes. Returns one line for each part of the state that
  /// this object's options and masks have changed.
  using Adoption = std::function<Notes()>;
  /// Checks a state with the keys of copy_of(State) and takes its arrays.
  /// Local. A kSharded array has the elements of this object's State::shard.
  /// The state may come from another number of ranks, and where possible from
  /// another optimizer or precision. 16-bit values are widened. fp32 values are
  /// rounded to 16 bits only if the state's integer allow_rounding is 1. The
  /// caller restores the parameters. Throws Error(kCorruptCheckpoint) naming
  /// what does not fit.
  [[nodiscard]] virtual Adoption adopt(StateDict state) = 0;
  /// Throws Error(kCorruptCheckpoint) unless a state in memory has this layout
  /// and, if ranks keep different things, this rank.
  virtual void require_owner(const StateDict& state) const = 0;
  /// Adopts a state in memory. Local. If every rank loads what it saved, the
  /// next step continues with the same bits. Returns the adoption's notes.
  /// Throws Error(kCorruptCheckpoint) naming what does not fit, before anything
  /// changes.
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
