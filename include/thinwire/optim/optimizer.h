// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/view.h"
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

/// Asked by an optimizer that is about to leave its exact stage.
struct FreezeRequest {
  std::int64_t step = 0;  ///< The exact step that would be the last one, taken.
  /// Collective: the seconds that one compressed exchange takes, of zeros;
  /// nothing but counters of traffic changes.
  std::function<double()> time_exchange;
};
/// Collective: whether the exact stage ends now; the same on all ranks.
using FreezeGate = std::function<bool(const FreezeRequest& request)>;

/// Collective: local gradients in, updated parameters out. An optimizer owns
/// its communication and its phases; it is handed local gradients in each of
/// them. Flat arrays are laid out by the ParameterLayout given at construction.
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

  /// Collective, queued: begins to average elements `range` of the gradients of
  /// the next step(), which must be handed the same `grads`. Between two steps
  /// the ranges do not overlap (Error(kInvalidArgument)) and are the same on
  /// all ranks, in the same order; step() averages what is missing. Their
  /// elements may not be touched in between. Only where reduces_early();
  /// Error(kFailedPrecondition) else.
  virtual void reduce_early(View grads, Range range);
  /// The next step averages gradients exactly, so it may begin before all of
  /// them are there. The same on all ranks.
  [[nodiscard]] virtual bool reduces_early() const noexcept { return false; }

  /// What reduce_early() takes: ranges of the flat array in their order, whole
  /// ones only. Empty: any range on the grid of sums.
  [[nodiscard]] virtual std::vector<Range> buckets() const { return {}; }

  /// Local: forms the norm of elements `range` of this rank's gradients, which
  /// the next step() needs before it exchanges anything; it must be handed the
  /// same `grads`, and these elements unchanged. step() measures what is
  /// missing. `range` is as for reduce_early(). Only where measures_early();
  /// Error(kFailedPrecondition) else.
  virtual void measure_early(ConstView grads, Range range);
  /// The next step measures its gradients, but does not average them.
  [[nodiscard]] virtual bool measures_early() const noexcept { return false; }
  /// Local: returns when nothing that reduce_early() or measure_early() began
  /// is under way in the gradients, but for what the communicator given at
  /// construction has queued.
  virtual void finish_early() {}
  /// The gradients measured so far will not be the next step's.
  virtual void forget_early() noexcept {}

  /// Asked from the next step on, in step(), where the exact stage of a 1-bit
  /// optimizer of several ranks would end. On a no it goes on for a tenth of
  /// the steps so far and at least one, and then asks again; until when is part
  /// of the state, freeze_held_until. Null: it ends. All ranks must do the
  /// same.
  virtual void set_freeze_gate(FreezeGate /*gate*/) {}

  /// Collective: makes parameters equal on all ranks, where the optimizer lets
  /// them differ between exchanges (0/1 Adam). To be called before evaluation
  /// and saving. Exchanges nothing where they are equal already.
  virtual void synchronize(View params);

  /// Norm of this rank's residual over that of the last exchange's result; 0
  /// where there is none. Local; may read the residual once.
  [[nodiscard]] virtual double residual_ratio() const { return 0; }

  /// The factors by which the last step multiplied the learning rate of each
  /// parameter, in the layout's order: LAMB's trust ratios, and in compressed
  /// steps of 1-bit LAMB its scaling coefficients. 0 before the first step;
  /// empty unless the optimizer is LAMB or 1-bit LAMB. Local, and the same on
  /// all ranks.
  [[nodiscard]] virtual std::vector<double> lamb_coeffs() const { return {}; }

  /// Steps that count: skipped ones do not.
  [[nodiscard]] virtual std::int64_t steps() const noexcept = 0;
  /// Steps skipped because a gradient was not finite.
  [[nodiscard]] virtual std::int64_t skipped_steps() const noexcept = 0;
  /// How the next step will average.
  [[nodiscard]] virtual Phase phase() const noexcept = 0;
  /// The last exact step as it is planned, named, derived or of a state: of
  /// 1-bit optimizers, which may say kAutoFreeze, and of 0/1 Adam, where the
  /// variance may change up to it. Nothing where all steps are exact.
  [[nodiscard]] virtual std::optional<std::int64_t> freeze_step() const {
    return std::nullopt;
  }

  /// Step size of one group from the next step on; local, so all ranks must do
  /// the same. Throws Error(kInvalidArgument) unless finite and >= 0, and for
  /// a group that does not exist.
  virtual void set_learning_rate(std::size_t group, double learning_rate) = 0;
  [[nodiscard]] virtual double learning_rate(std::size_t group) const = 0;
  /// The same for every group.
  void set_learning_rate(double learning_rate);
  /// Weight decay of one group from the next step on, in place of what options
  /// say; local, so all ranks must do the same. Like all options, and unlike
  /// learning rates, it is no part of the state: loading one leaves it as it
  /// is. Throws Error(kInvalidArgument) unless finite and >= 0, and for a group
  /// that does not exist.
  virtual void set_weight_decay(std::size_t group, double weight_decay) = 0;
  [[nodiscard]] virtual double weight_decay(std::size_t group) const = 0;
  /// Elements of one group whose momentum is 0 from now on, in place of what
  /// options say: one value per element in layout order, 0 there and 1 else;
  /// empty: 1 everywhere. Like weight decay it is no part of the state. Local,
  /// so all ranks must do the same, which the next step that exchanges anything
  /// finds out before it changes anything: Error(kInvalidArgument) on all of
  /// them. It acts from that step on: what was compressed leaves the
  /// compression, and what was left out comes back with its next gradient, as a
  /// late element does. Throws Error(kInvalidArgument) for another size, for a
  /// group that does not exist, and where nothing is compressed.
  virtual void set_exp_avg_mask(std::size_t group, std::span<const float> mask);
  [[nodiscard]] virtual std::size_t num_groups() const noexcept = 0;

  /// All that a continued run needs, described and not copied; local. Valid
  /// until the next step.
  [[nodiscard]] virtual State state() const = 0;
  using Adoption = optim::Adoption;
  /// Local: checks a state with the keys of copy_of(State) and takes its
  /// arrays; of kSharded ones it has what State::shard of this object says. It
  /// may be of another number of ranks and, where that makes sense, of another
  /// optimizer or precision: 16 bits are widened, fp32 is rounded to 16 if the
  /// state's integer allow_rounding is 1. Parameters stay the caller's. Throws
  /// Error(kCorruptCheckpoint) naming what does not fit.
  [[nodiscard]] virtual Adoption adopt(StateDict state) = 0;
  /// Local: what the last adoption has made otherwise than the state had it, as
  /// options and masks of this object ask: a line each, which is forgotten.
  [[nodiscard]] virtual std::vector<std::string> take_notes() { return {}; }
  /// Local, after an adoption: `params` hold those of the last exchange, and
  /// become what this rank's local steps had made of them (0/1 Adam).
  virtual void repeat_local_steps(View params);
  /// Local: parameters were loaded from elsewhere, layout.size() elements of
  /// any dtype: makes masters of them, where there are some. 0/1 Adam forgets
  /// its updates since the last exchange. Throws Error(kInvalidArgument) on a
  /// wrong size.
  virtual void read_masters(ConstView /*params*/) {}
  /// Local: the parameters of the last exchange, the same on all ranks: a view
  /// of `params`, or within local steps (0/1 Adam) of an fp32 array of as many
  /// elements that is valid until the next step.
  [[nodiscard]] virtual ConstView exchanged_params(ConstView params) const;
  /// Local steps since the last exchange, which exchanged_params() lack; the
  /// same on all ranks, >= 0.
  [[nodiscard]] virtual std::int64_t steps_behind() const noexcept;

  /// All that a continued run needs, copied: copy_of(state()) and owner();
  /// local. What differs from rank to rank (residuals) is this rank's.
  [[nodiscard]] virtual StateDict state_dict() const;
  /// Local; every rank loads what it saved. The next step continues bit-equal.
  /// Throws Error(kCorruptCheckpoint) naming what does not fit, before anything
  /// changes.
  virtual void load_state_dict(const StateDict& state);
  /// Scalars that say whose state_dict() it is: its layout, its rank.
  [[nodiscard]] virtual StateDict owner() const;
  /// Throws Error(kCorruptCheckpoint) unless a state in memory has this owner.
  virtual void require_owner(const StateDict& state) const;
};

}  // namespace thinwire::optim
