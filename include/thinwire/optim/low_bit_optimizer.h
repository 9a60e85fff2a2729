// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "thinwire/exchange/compressed_all_reduce.h"
#include "thinwire/optim/adam.h"
#include "thinwire/optim/optimizer.h"

namespace thinwire::optim {

/// Options of one group of parameters. Unset fields take the optimizer's
/// values.
struct MaskedGroup : AdamGroup {
  /// One value per element of the group, in layout order: 0 if the momentum is
  /// always 0, otherwise 1. Empty if all are 1.
  std::vector<float> exp_avg_mask{};

  bool operator==(const MaskedGroup&) const = default;
};

/// Common base of 1-bit Adam, 1-bit LAMB and 0/1 Adam. It has moments, groups,
/// masks, the compressed exchange with its residuals, and the state. One scalar
/// exchange per step serves both clipping and the check for non-finite
/// gradients.
class LowBitOptimizer : public Optimizer {
 public:
  ~LowBitOptimizer() override;

  using Optimizer::step;
  StepReport step(const StepInput& input) final;
  using Optimizer::groups;
  [[nodiscard]] ParameterGroups& groups() final;
  [[nodiscard]] Progress progress() const final;
  [[nodiscard]] double residual_ratio() const final;
  [[nodiscard]] EarlyGradients* early() final;
  using Optimizer::local_steps;
  [[nodiscard]] LocalSteps* local_steps() final;
  using Optimizer::freeze;
  [[nodiscard]] FreezeStage* freeze() final;
  void set_masters(ConstView params) final;

  /// Returns the optimizer's own arrays and scalars, and the following. The
  /// array exp_avg [n] is fp32. worker_error has every compressed element, and
  /// server_error the elements of State::shard, which this rank serves. Both
  /// have the residuals' dtype. The scalars are step, skipped_steps and
  /// clip_ratio. Computing the residuals takes one pass over them. Local.
  [[nodiscard]] State state() const final;
  /// Adopts a state. If worker_error or server_error is missing, as in a state
  /// of ZeRO, both become 0. A single rank does not compress: its first
  /// exchange adds the restored residuals, and state() has them until then.
  [[nodiscard]] Adoption adopt(StateDict state) final;
  /// Throws Error(kCorruptCheckpoint) unless residuals in memory come from the
  /// same rank, number of ranks and bucket size.
  void require_owner(const StateDict& state) const final;

  /// Sets the observer of the contents of all messages, from the next step on,
  /// or none if null. It must outlive its use.
  void set_observer(exchange::WireObserver* observer) noexcept;

  struct Impl;

 protected:
  explicit LowBitOptimizer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::optim
