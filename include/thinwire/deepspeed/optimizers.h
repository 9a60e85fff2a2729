// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "thinwire/comm/communicator.h"
#include "thinwire/exchange/compressed_all_reduce.h"
#include "thinwire/optim/onebit_adam.h"
#include "thinwire/optim/onebit_lamb.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/update_rule.h"
#include "thinwire/optim/zero_one_adam.h"

/// The optimizers of DeepSpeed 0.19.6 as it computes them, bit for bit: for
/// those who migrate a run or reproduce a paper. What differs from Thinwire's
/// own, and why that is preferable: docs/algorithms/deepspeed.md.
namespace thinwire::deepspeed {

/// An optimizer that one of the 16-bit wrappers can hold (fp16_optimizer.h),
/// which averages the gradients of exact steps itself.
class Optimizer : public optim::Optimizer {
 public:
  using optim::Optimizer::step;
  /// Collective: as step(), of gradients that have been averaged and are the
  /// same on all ranks. Only what is compressed is exchanged.
  virtual optim::StepReport step_averaged(const optim::StepInput& input) = 0;
};

/// Adam or LAMB behind such a wrapper.
class ExactOptimizer final : public Optimizer {
 public:
  /// Collective: all ranks give the same rule, layout and options, else
  /// Error(kInvalidArgument) on all of them shows the first difference; without
  /// a rule, too. `comm` must outlive this object. Of the options verify_every
  /// and num_threads have an effect.
  ExactOptimizer(comm::Communicator& comm,
                 std::unique_ptr<optim::UpdateRule> rule,
                 const optim::ExchangeOptions& options = {});
  ~ExactOptimizer() override;

  using Optimizer::step;
  optim::StepReport step(const optim::StepInput& input) override;
  optim::StepReport step_averaged(const optim::StepInput& input) override;
  using optim::Optimizer::groups;
  [[nodiscard]] optim::ParameterGroups& groups() override;
  [[nodiscard]] optim::Progress progress() const override;
  [[nodiscard]] optim::State state() const override;
  [[nodiscard]] Adoption adopt(StateDict state) override;
  void require_owner(const StateDict& state) const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What the low-bit ones have in common: one scale per parameter, whose padding
/// counts and carries residuals; no guard against gradients that are not
/// finite; residuals that load_state_dict() forgets; and a first step() that
/// counts but moves nothing. Of their options bias_correction,
/// epsilon_inside_sqrt, denom_floor and max_grad_norm have no effect.
class LowBitOptimizer : public Optimizer {
 public:
  ~LowBitOptimizer() override;

  using Optimizer::step;
  optim::StepReport step(const optim::StepInput& input) final;
  optim::StepReport step_averaged(const optim::StepInput& input) final;
  using optim::Optimizer::groups;
  [[nodiscard]] optim::ParameterGroups& groups() final;
  /// It skips no step.
  [[nodiscard]] optim::Progress progress() const final;
  /// Arrays exp_avg and exp_avg_sq [n], worker_error, server_error and each
  /// optimizer's own; scalars step and its own. Of use to the same rank of as
  /// many only.
  [[nodiscard]] optim::State state() const final;
  /// The run goes on bit-equal, unless its options ask for another stage than
  /// the state's; then as load_state_dict().
  [[nodiscard]] Adoption adopt(StateDict state) final;
  /// As the reference: residuals are 0 afterwards, whatever the state has, and
  /// docs/algorithms/deepspeed.md says what else is forgotten.
  optim::Notes load_state_dict(const StateDict& state) final;
  void require_owner(const StateDict& state) const final;

  /// Sees every message content from the next step on; null: nobody. Must
  /// outlive its use.
  void set_observer(exchange::WireObserver* observer) noexcept;

  struct Impl;

 protected:
  explicit LowBitOptimizer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

/// Throw Error(kInvalidArgument) naming the field, its range and its value.
/// freeze_step and var_freeze_step may be 0: their initialization step counts,
/// so there are freeze_step - 1 exact updates. There is no automatic freeze,
/// and residuals are fp32.
void validate(const optim::OnebitAdamOptions& options,
              const ParameterLayout& layout);
void validate(const optim::OnebitLambOptions& options,
              const ParameterLayout& layout);
void validate(const optim::ZeroOneAdamOptions& options,
              const ParameterLayout& layout);

/// deepspeed/runtime/fp16/onebit/adam.py.
class OnebitAdam final : public LowBitOptimizer {
 public:
  /// Collective: all ranks give the same layout and options, else
  /// Error(kInvalidArgument) on all of them. Holds 12 bytes per parameter from
  /// the freeze on, and 4 + 4/W for residuals. `comm` must outlive this object.
  OnebitAdam(comm::Communicator& comm, const ParameterLayout& layout,
             const optim::OnebitAdamOptions& options);
};

/// deepspeed/runtime/fp16/onebit/lamb.py.
class OnebitLamb final : public LowBitOptimizer {
 public:
  /// Collective, as OnebitAdam's. Holds 16 bytes per parameter from the freeze
  /// on, and 4 + 4/W for residuals.
  OnebitLamb(comm::Communicator& comm, const ParameterLayout& layout,
             const optim::OnebitLambOptions& options);
};

/// deepspeed/runtime/fp16/onebit/zoadam.py: gradients are exchanged before the
/// freeze, decay goes through the accumulator, and a sync leaves rounding
/// behind that differs from rank to rank.
class ZeroOneAdam final : public LowBitOptimizer {
 public:
  /// Collective, as OnebitAdam's. Holds 16 bytes per parameter, and 4 + 4/W for
  /// residuals.
  ZeroOneAdam(comm::Communicator& comm, const ParameterLayout& layout,
              const optim::ZeroOneAdamOptions& options);
};

}  // namespace thinwire::deepspeed
