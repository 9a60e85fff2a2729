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

/// How ranks averaged in a step.
enum class Phase {
  kExact,       ///< Gradients, in full precision.
  kCompressed,  ///< Momentum, in few bits per element.
  kLocal,       ///< Not at all: parameters differ until the next exchange.
};

/// "exact", "compressed", "local".
[[nodiscard]] std::string_view to_string(Phase phase) noexcept;

/// What one step works on: flat arrays of layout.size() elements.
struct StepInput {
  /// fp32, equal on all ranks; updated in place. Exact Adam also takes fp16 and
  /// bf16.
  View params;
  /// This rank's gradient, fp32, fp16 or bf16; unspecified afterwards. What is
  /// averaged exactly is summed in fp32 and, if 16 bits long, rounded once.
  View grads;
  /// Gradients arrive multiplied by this factor; step() divides it out before
  /// clipping and reporting. Finite, > 0.
  double loss_scale = 1;
  /// If not empty: fp16 or bf16, and gets the updated parameters, rounded.
  View low_precision{};
  /// A gradient that is not finite on one rank skips this step on all ranks,
  /// also where they exchange nothing else (0/1 Adam's local steps), and
  /// whatever ExchangeOptions::skip_nonfinite says.
  bool skip_if_any_rank_nonfinite = false;
  /// Report the offending rank and leave `grads` as they were; costs exact
  /// steps one extra scalar exchange.
  bool finds_nonfinite = false;
  /// If not empty, the model has other parameters than these: given the norm of
  /// the averaged gradient of these, in a compressed step the estimate of it,
  /// returns that of the whole model's, by which the step is clipped or
  /// skipped. Called once per step; may be collective.
  std::function<double(double norm)> whole_norm{};
};

/// What one step did. The same on all ranks, except for the times.
struct StepReport {
  /// False: a gradient was not finite on some rank, and nothing has changed on
  /// any rank.
  bool applied = true;
  /// The lowest rank whose gradient was not finite, where that is known; -1.
  /// Of a step that was applied: that rank left out local steps since the last
  /// exchange.
  int nonfinite_rank = -1;
  Phase phase = Phase::kExact;
  /// All ranks handed in gradients of one norm, the same to the bit and above
  /// 0: they were probably averaged before, or ranks read the same data, and
  /// nothing is gained by averaging. Known where ranks tell each other their
  /// norms: low-bit optimizers, except in local steps, and finds_nonfinite.
  /// Only in the first two such steps after construction, and of several ranks.
  bool gradients_equal = false;
  /// L2 norm of the averaged gradient before clipping; in compressed steps the
  /// calibrated estimate of it.
  double grad_norm = 0;
  bool grad_norm_is_estimate = false;
  /// What the gradient was multiplied by to keep to max_grad_norm; 1: nothing.
  double clip_factor = 1;
  /// What the gradient was divided by.
  double loss_scale = 1;
  /// Low-bit optimizers: elements that take no part now (masked, or without any
  /// gradient so far), ...
  std::size_t masked = 0;
  /// ... those so far above their block that they travel scaled down, ...
  std::size_t heavy = 0;
  /// ... and those whose first gradient came in this step.
  std::size_t revived = 0;
  std::uint64_t bytes_sent = 0;   ///< By this rank to others, in this step.
  std::uint64_t collectives = 0;  ///< Issued in this step.
  std::uint64_t messages = 0;     ///< Sent by this rank in this step.
  /// Of bytes_sent, what went to other hosts.
  std::uint64_t bytes_between_hosts = 0;
  /// A skipped step has made residuals 0, see zero::AfterSkip.
  bool residuals_cleared = false;
  double seconds = 0;           ///< Of the whole step.
  double exchange_seconds = 0;  ///< Of it, spent waiting for other ranks.
  /// In which some collective was under way, beside backward too.
  double comm_busy_seconds = 0;
};

/// Where training stands; the same on all ranks.
struct Progress {
  std::int64_t steps = 0;       ///< Steps that count; skipped ones do not.
  std::int64_t skipped = 0;     ///< Steps with a gradient that was not finite.
  Phase phase = Phase::kExact;  ///< How the next step will average.
  /// The planned last exact step, which options name or imply, or a state has.
  /// 1-bit optimizers may say kAutoFreeze; the variance of 0/1 Adam may change
  /// up to this step. Nothing if all steps are exact.
  std::optional<std::int64_t> freeze_step{};
  /// The factors by which the last step multiplied the learning rate of each
  /// parameter, in the layout's order: LAMB's trust ratios or, in compressed
  /// steps of 1-bit LAMB, its scaling coefficients. They are 0 before the first
  /// step, and empty unless the optimizer is LAMB or 1-bit LAMB.
  std::vector<double> lamb_coeffs{};
};

/// What the next step() can do before all gradients are there.
class EarlyGradients {
 public:
  virtual ~EarlyGradients() = default;

  /// Returns whether the next step averages gradients as they come. The same on
  /// all ranks.
  [[nodiscard]] virtual bool reduces() const noexcept = 0;
  /// Collective, queued: begins to average elements `range` of the gradients of
  /// the next step(), which must get the same `grads`. Between two steps the
  /// ranges do not overlap (Error(kInvalidArgument)). All ranks give the same
  /// ranges in the same order; step() averages what is missing. The caller must
  /// not touch these elements until step(). Throws Error(kFailedPrecondition)
  /// unless reduces().
  virtual void reduce(View grads, Range range) = 0;
  /// Returns what reduce() takes: ranges of the flat array in their order, only
  /// whole ones. If it is empty, reduce() takes any range on the grid of sums.
  [[nodiscard]] virtual std::vector<Range> buckets() const { return {}; }

  /// Returns whether the next step measures its gradients without averaging
  /// them.
  [[nodiscard]] virtual bool measures() const noexcept { return false; }
  /// Local: forms the norm of elements `range` of this rank's gradients, which
  /// step() needs before it exchanges anything. step() must get the same
  /// `grads`, with these elements unchanged, and measures what is missing.
  /// `range` is as for reduce(). Throws Error(kFailedPrecondition) unless
  /// measures().
  virtual void measure(ConstView grads, Range range);

  /// Local: returns when reduce() and measure() no longer use the gradients,
  /// except for what the communicator given at construction has queued.
  virtual void finish() {}
  /// Drops the measurements: the next step gets other gradients.
  virtual void forget() noexcept {}

 protected:
  /// Throws Error(kFailedPrecondition) unless reduces().
  void require_reduces() const;
  /// Throws Error(kFailedPrecondition) unless measures().
  void require_measures() const;
};

/// Steps between exchanges, in which parameters differ from rank to rank.
class LocalSteps {
 public:
  virtual ~LocalSteps() = default;

  /// Returns the number of local steps since the last exchange. The same on all
  /// ranks.
  [[nodiscard]] virtual std::int64_t steps_behind() const noexcept = 0;
  /// Collective: makes parameters equal on all ranks. To be called before
  /// evaluation and saving. Exchanges nothing if they are equal already.
  virtual void synchronize(View params) = 0;
  /// Local: returns the parameters of the last exchange, the same on all ranks.
  /// This is a view of `params` or, if steps_behind() > 0, of an fp32 array of
  /// as many elements that is valid until the next step.
  [[nodiscard]] virtual ConstView exchanged_params(ConstView params) const = 0;
  /// Local, after an adoption: `params` hold those of the last exchange, and
  /// become what this rank's local steps had made of them. Masters do, too;
  /// without `params` only they do.
  virtual void repeat(View params) = 0;
};

/// What an optimizer asks before it leaves its exact stage.
struct FreezeRequest {
  std::int64_t step = 0;  ///< The exact step that would be the last one, taken.
  /// Collective: the seconds that one compressed exchange takes, of zeros;
  /// nothing but counters of traffic changes.
  std::function<double()> time_exchange;
};
/// Collective: returns whether the exact stage ends now; the same on all ranks.
using FreezeGate = std::function<bool(const FreezeRequest& request)>;

/// The end of the exact stage of a 1-bit optimizer.
class FreezeStage {
 public:
  virtual ~FreezeStage() = default;

  /// From the next step on, step() asks this gate where the exact stage of
  /// several ranks would end. If the gate returns false, the stage goes on for
  /// a tenth of the steps so far and at least one step, and then step() asks
  /// again. The state says until when, as freeze_held_until. Without a gate the
  /// stage ends. All ranks must do the same.
  virtual void set_gate(FreezeGate gate) = 0;
  /// Returns the last exact step; 0 before the freeze.
  [[nodiscard]] virtual std::int64_t frozen_at() const noexcept = 0;
};

/// Collective: local gradients in, updated parameters out. An optimizer owns
/// its communication and its phases; in each of them its caller passes local
/// gradients. Flat arrays follow the ParameterLayout given at construction.
///
/// Not every optimizer can do everything: early(), local_steps() and freeze()
/// return null if it cannot. Their answers do not change, and a wrapper hands
/// on those of the optimizer inside.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Collective, done on return: updates the parameters from the ranks'
  /// gradients. Throws Error(kInvalidArgument) on a wrong size or dtype, before
  /// anything changes; Error(kCommFailure) if a peer is lost, after which this
  /// object may only be destroyed.
  virtual StepReport step(const StepInput& input) = 0;
  StepReport step(View params, View grads) {
    return step(StepInput{.params = params, .grads = grads});
  }

  [[nodiscard]] virtual ParameterGroups& groups() = 0;
  [[nodiscard]] const ParameterGroups& groups() const {
    return const_cast<Optimizer&>(*this).groups();
  }
  [[nodiscard]] virtual Progress progress() const = 0;
  /// Local: returns the norm of this rank's residual over that of the last
  /// exchange's result; 0 if there is none. May read the residual once.
  [[nodiscard]] virtual double residual_ratio() const { return 0; }

  [[nodiscard]] virtual EarlyGradients* early() { return nullptr; }
  /// 0/1 Adam's, and those of MixedPrecision with masters.
  [[nodiscard]] virtual LocalSteps* local_steps() { return nullptr; }
  [[nodiscard]] const LocalSteps* local_steps() const {
    return const_cast<Optimizer&>(*this).local_steps();
  }
  /// That of 1-bit Adam, lean or not, and of 1-bit LAMB.
  [[nodiscard]] virtual FreezeStage* freeze() { return nullptr; }
  [[nodiscard]] const FreezeStage* freeze() const {
    return const_cast<Optimizer&>(*this).freeze();
  }

  /// Local: parameters were loaded from elsewhere, layout.size() elements of
  /// any dtype. Makes masters of them, if there are some; 0/1 Adam forgets its
  /// updates since the last exchange. Throws Error(kInvalidArgument) on a wrong
  /// size.
  virtual void set_masters(ConstView /*params*/) {}

  /// Local: describes all that a continued run needs, without copying it. Valid
  /// until the next step. copy_of() it is a state in memory, in which residuals
  /// are this rank's.
  [[nodiscard]] virtual State state() const = 0;
  /// Puts in place what adopt() has checked; cannot fail. Not called: nothing
  /// changes. Returns what options and masks of this object have made otherwise
  /// than the state had it, a line each.
  using Adoption = std::function<Notes()>;
  /// Local: checks a state with the keys of copy_of(State) and takes its
  /// arrays; of kSharded ones it has what State::shard of this object says. It
  /// may be of another number of ranks and, where that makes sense, of another
  /// optimizer or precision: 16 bits are widened, fp32 is rounded to 16 if the
  /// state's integer allow_rounding is 1. Parameters stay the caller's. Throws
  /// Error(kCorruptCheckpoint) naming what does not fit.
  [[nodiscard]] virtual Adoption adopt(StateDict state) = 0;
  /// Throws Error(kCorruptCheckpoint) unless a state in memory is of this
  /// layout and of the same rank, where ranks keep different things.
  virtual void require_owner(const StateDict& state) const = 0;
  /// Local: adopts a state in memory. Every rank loads what it saved, and the
  /// next step continues bit-equal. Throws Error(kCorruptCheckpoint) naming
  /// what does not fit, before anything changes. Returns the adoption's notes.
  virtual Notes load_state_dict(const StateDict& state);
};

/// Returns the parameters of the last exchange: those of
/// LocalSteps::exchanged_params(), or `params` if all steps exchange.
[[nodiscard]] ConstView exchanged_params(const Optimizer& optimizer,
                                         ConstView params);
/// Collective: calls LocalSteps::synchronize(), if there are local steps.
void synchronize(Optimizer& optimizer, View params);
/// Returns LocalSteps::steps_behind(), or 0.
[[nodiscard]] std::int64_t steps_behind(const Optimizer& optimizer) noexcept;

}  // namespace thinwire::optim
