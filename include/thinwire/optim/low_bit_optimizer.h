// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "thinwire/exchange/compressed_all_reduce.h"
#include "thinwire/optim/adam.h"
#include "thinwire/optim/optimizer.h"

namespace thinwire::optim {

/// What a group of parameters does differently; unset fields are the options'.
struct MaskedGroup : AdamGroup {
  /// 0 where the momentum is constantly 0, else 1: one value per element of the
  /// group, in layout order; empty: 1 everywhere.
  std::vector<float> exp_avg_mask{};

  bool operator==(const MaskedGroup&) const = default;
};

/// What 1-bit Adam, 1-bit LAMB and 0/1 Adam share: moments, groups, masks, the
/// compressed exchange with its residuals, the one scalar exchange for
/// finiteness and clipping, and state.
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

  /// Arrays exp_avg [n] fp32, worker_error (every compressed element) and
  /// server_error (those that this rank serves, which are State::shard) in the
  /// residuals' dtype, and each optimizer's own; scalars step, skipped_steps,
  /// clip_ratio and its own. Local, but forms residuals: a pass over them.
  [[nodiscard]] State state() const final;
  /// worker_error and server_error are 0 where one of them is missing: ZeRO's
  /// are of gradients, and no server's. A group of one compresses nothing: what
  /// they hold is delivered by its first exchange, and is in state() till then.
  [[nodiscard]] Adoption adopt(StateDict state) final;
  /// Residuals in memory fit the same rank, number of ranks and bucket size
  /// only.
  void require_owner(const StateDict& state) const final;

  /// Sees every message content from the next step on; null: nobody. Must
  /// outlive its use.
  void set_observer(exchange::WireObserver* observer) noexcept;

  struct Impl;

 protected:
  explicit LowBitOptimizer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::optim
