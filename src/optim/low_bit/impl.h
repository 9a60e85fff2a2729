// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "optim/low_bit/denominator.h"
#include "optim/low_bit/local_gradients.h"
#include "optim/low_bit/model.h"
#include "optim/low_bit/momentum.h"
#include "thinwire/optim/low_bit_optimizer.h"

namespace thinwire::optim {

/// The parts that the three optimizers share. Each adds its own, and calls them
/// in its paper's order; parts do not call back.
struct LowBitOptimizer::Impl {
  /// Applies what read_own() has checked and copied.
  using Commit = std::function<void()>;

  Impl(comm::Communicator& comm, const ParameterLayout& layout,
       LowBitSettings settings, const CompressedMomentum::Options& options = {})
      : model(comm, layout, std::move(settings)),
        gradients(model),
        momentum(model, options),
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

  // ---- what each optimizer adds
  /// One step of its paper. A step that is skipped returns early, with the
  /// report saying so.
  virtual void take_step(const StepInput& in, StepMeter& step) = 0;
  [[nodiscard]] virtual Phase phase() const = 0;
  /// Collective: makes parameters equal on all ranks.
  virtual void synchronize(View /*params*/) {}
  virtual void save_own(StateDict& state) const = 0;
  [[nodiscard]] virtual Commit read_own(const StateDict& state) = 0;

  // ---- pieces of a step
  [[nodiscard]] Adam& adam() { return model.adam; }
  /// Before gradients are encoded, `grad_scale` being what they will be
  /// multiplied by: late elements that have one take part from now on and are
  /// returned; heavy elements and outliers are kept from spoiling their block.
  [[nodiscard]] std::vector<std::size_t> prepare_gradients(const StepInput& in,
                                                           double grad_scale,
                                                           StepMeter& step);
  /// Collective, after a step that was applied and has left parameters equal on
  /// all ranks: compares them where options say that it is time.
  /// `schedule`: counters that must be equal, too.
  void verify(View params, const std::string& schedule);
  /// The same after one that leaves them different: it is made up for later.
  void put_off_verification();

  [[nodiscard]] StepReport step(const StepInput& in);
  [[nodiscard]] StateDict save() const;
  void load(const StateDict& state);
};

}  // namespace thinwire::optim
