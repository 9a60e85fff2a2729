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

/// The optimizers of DeepSpeed 0.19.6, bit for bit, for migrating a run or
/// reproducing a paper. docs/algorithms/deepspeed.md lists the differences from
/// Thinwire's own optimizers, and why those are preferable.
namespace thinwire::deepspeed {

/// An optimizer that a 16-bit wrapper can hold (fp16_optimizer.h). In exact
/// steps the wrapper averages the gradients.
class Optimizer : public optim::Optimizer {
 public:
  using optim::Optimizer::step;
  /// Runs a step with gradients that have already been averaged and are equal
  /// on all ranks. Exchanges only compressed data. Collective.
  virtual optim::StepReport step_averaged(const optim::StepInput& input) = 0;
};

/// Adam or LAMB for a 16-bit wrapper.
class ExactOptimizer final : public Optimizer {
 public:
  /// Creates the optimizer. Collective. If ranks pass different rules, layouts
  /// or options, or no rule, throws Error(kInvalidArgument) on all ranks, with
  /// the first difference. `comm` must outlive this object. Only the options
  /// verify_every and num_threads have an effect.
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

/// Common base of the low-bit optimizers. Each parameter has one scale, which
/// its padding affects; padding also has residuals. Non-finite gradients are
/// not detected. load_state_dict() discards residuals. The first step() counts
/// but changes nothing. The options bias_correction, epsilon_inside_sqrt,
/// denom_floor and max_grad_norm have no effect.
class LowBitOptimizer : public Optimizer {
 public:
  ~LowBitOptimizer() override;

  using Optimizer::step;
  optim::StepReport step(const optim::StepInput& input) final;
  optim::StepReport step_averaged(const optim::StepInput& input) final;
  using optim::Optimizer::groups;
  [[nodiscard]] optim::ParameterGroups& groups() final;
  /// Returns the progress. No step is ever skipped.
  [[nodiscard]] optim::Progress progress() const final;
  /// Returns the arrays exp_avg and exp_avg_sq [n], worker_error, server_error,
  /// the scalar step, and each optimizer's own arrays and scalars. The state
  /// can be loaded only by the same rank in a run with the same number of
  /// ranks.
  [[nodiscard]] optim::State state() const final;
  /// Adopts a state, from which the run continues with the same bits. If this
  /// object's options request another stage than the state's, adopts it like
  /// load_state_dict().
  [[nodiscard]] Adoption adopt(StateDict state) final;
  /// Loads a state like DeepSpeed: residuals are always 0 afterwards.
  /// docs/algorithms/deepspeed.md lists other discarded values.
  optim::Notes load_state_dict(const StateDict& state) final;
  void require_owner(const StateDict& state) const final;

  /// Sets the observer of the contents of all messages, from the next step on,
  /// or none if null. It must outlive its use.
  void set_observer(exchange::WireObserver* observer) noexcept;

  struct Impl;

 protected:
  explicit LowBitOptimizer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

/// Check the options. Throw Error(kInvalidArgument) with the field, its range
/// and its value. freeze.step and var_freeze_step may be 0. Because the
/// initialization step counts, there are freeze.step - 1 exact updates. There
/// is no automatic freeze, and residuals are fp32.
void validate(const optim::OnebitAdamOptions& options,
              const ParameterLayout& layout);
void validate(const optim::OnebitLambOptions& options,
              const ParameterLayout& layout);
void validate(const optim::ZeroOneAdamOptions& options,
              const ParameterLayout& layout);

/// 1-bit Adam of deepspeed/runtime/fp16/onebit/adam.py.
class OnebitAdam final : public LowBitOptimizer {
 public:
  /// Creates the optimizer. Collective. If ranks pass different layouts or
  /// options, throws Error(kInvalidArgument) on all ranks. `comm` must outlive
  /// this object. After the freeze it holds 12 bytes per parameter, and 4 + 4/W
  /// for residuals.
  OnebitAdam(comm::Communicator& comm, const ParameterLayout& layout,
             const optim::OnebitAdamOptions& options);
};

/// 1-bit LAMB of deepspeed/runtime/fp16/onebit/lamb.py.
class OnebitLamb final : public LowBitOptimizer {
 public:
  /// Creates the optimizer under the conditions of OnebitAdam's constructor.
  /// Collective. After the freeze it holds 16 bytes per parameter, and 4 + 4/W
  /// for residuals.
  OnebitLamb(comm::Communicator& comm, const ParameterLayout& layout,
             const optim::OnebitLambOptions& options);
};

/// 0/1 Adam of deepspeed/runtime/fp16/onebit/zoadam.py. Ranks exchange
/// gradients before the freeze, and decay is part of the accumulator. A sync
/// leaves rounding errors that differ from rank to rank.
class ZeroOneAdam final : public LowBitOptimizer {
 public:
  /// Creates the optimizer under the conditions of OnebitAdam's constructor.
  /// Collective. It holds 16 bytes per parameter, and 4 + 4/W for residuals.
  ZeroOneAdam(comm::Communicator& comm, const ParameterLayout& layout,
              const optim::ZeroOneAdamOptions& options);
};

}  // namespace thinwire::deepspeed
