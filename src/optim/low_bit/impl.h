// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optim/low_bit/denominator/denominator.h"
#include "optim/low_bit/gradients/local_gradients.h"
#include "optim/low_bit/model.h"
#include "optim/low_bit/momentum/momentum.h"
#include "thinwire/optim/low_bit_optimizer.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// The parts that the three optimizers share. Each adds its own, and calls them
/// in its paper's order; parts do not call back.
struct LowBitOptimizer::Impl {
  Impl(comm::Communicator& comm, const ParameterLayout& layout,
       LowBitSettings settings, bool keeps_previous = false)
      : model(comm, layout, std::move(settings)),
        gradients(model),
        momentum(model, keeps_previous),
        denominator(model, momentum) {}
  virtual ~Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  LowBitModel model;
  LocalGradients gradients;
  CompressedMomentum momentum;
  Denominator denominator;
  std::int64_t steps = 0;
  std::int64_t skipped = 0;
  bool verification_is_due = false;
  std::vector<std::string> notes;  // of the last adoption

  // ---- what each optimizer adds
  /// One step of its paper. A step that is skipped returns early, with the
  /// report saying so.
  virtual void take_step(const StepInput& in, StepMeter& step) = 0;
  [[nodiscard]] virtual Phase phase() const = 0;
  [[nodiscard]] virtual std::optional<std::int64_t> freeze_step() const = 0;
  /// As Optimizer: what the next step takes before all gradients are there. By
  /// host, a compressed one of pieces begins inside hosts.
  [[nodiscard]] virtual bool reduces_early() const {
    return phase() == Phase::kExact || begins_inside();
  }
  virtual void reduce_early(View grads, Range range);
  [[nodiscard]] virtual std::vector<Range> buckets() const { return {}; }
  /// A compressed step has begun early, so there is no state between steps.
  [[nodiscard]] virtual bool is_under_way() const { return false; }
  /// By host, the next step needs of the gradients what this rank encodes only.
  [[nodiscard]] virtual bool takes_pieces() const {
    return phase() == Phase::kCompressed;
  }
  /// Parameters are others now.
  virtual void read_masters(ConstView /*params*/) {}
  /// Of a warm-up stage that ends.
  virtual void set_freeze_gate(FreezeGate /*gate*/) {}
  /// Collective: makes parameters equal on all ranks.
  virtual void synchronize(View /*params*/) {}
  /// 0/1 Adam: this rank's steps since the last exchange, and what they began
  /// with.
  [[nodiscard]] virtual std::int64_t steps_behind() const { return 0; }
  [[nodiscard]] virtual ConstView exchanged_params(ConstView params) const {
    return params;
  }
  virtual void repeat_local_steps(View /*params*/) {}
  /// Masks take these elements out.
  virtual void leave_out(std::span<const std::size_t> /*elements*/) {}
  /// How exp_avg lies on the ranks.
  [[nodiscard]] virtual Sharing momentum_sharing() const {
    return Sharing::kSame;
  }
  virtual void add_own(State& state) const = 0;
  /// Takes it out of the state; exp_avg and exp_avg_sq are still there.
  [[nodiscard]] virtual Adoption adopt_own(StateDict& state) = 0;
  /// The rule whose exact steps are the warm-up; empty: there is none.
  [[nodiscard]] virtual std::string_view exact_rule() const { return {}; }
  /// Adds to the state of that rule what else the warm-up keeps; begins now.
  virtual void begin_in(StateDict& /*state*/) const {}

  // ---- pieces of a step
  [[nodiscard]] bool begins_inside() const {
    return model.host && takes_pieces();
  }
  [[nodiscard]] Adam& adam() { return model.adam; }
  /// Collective, before a compressed exchange: by host, gradients become the
  /// mean of this host's, where this rank encodes them. Returns what
  /// LocalGradients::clip_by_estimate() does.
  [[nodiscard]] std::optional<double> begin_compressed(
      const StepInput& in, StepMeter& step, bool is_unlike_early = false);
  /// Before gradients are encoded, `grad_scale` being what they will be
  /// multiplied by: late elements that have one take part from now on and are
  /// returned; heavy elements and outliers are kept from spoiling their block.
  [[nodiscard]] std::vector<std::size_t> prepare_gradients(const StepInput& in,
                                                           double grad_scale,
                                                           StepMeter& step);
  /// After ranks have agreed on the masks, and before anything of this step
  /// depends on them.
  MaskChange follow_masks();
  /// Collective, after a step that was applied and has left parameters equal on
  /// all ranks: compares them where options say that it is time.
  /// `schedule`: counters that must be equal, too.
  void verify(View params, const std::string& schedule);
  /// The same after one that leaves them different: it is made up for later.
  void put_off_verification();

  [[nodiscard]] StepReport step(const StepInput& in);
  [[nodiscard]] State state() const;
  [[nodiscard]] Adoption adopt(StateDict state);
  [[nodiscard]] StateDict owner() const;
  void require_owner(const StateDict& state) const;

  /// Throws Error(kFailedPrecondition) while a step is under way.
  void require_between_steps(const char* call) const;

 private:
  void require_optimizer(StateDict& state) const;
};

}  // namespace thinwire::optim
