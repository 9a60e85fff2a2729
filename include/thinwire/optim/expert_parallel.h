// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/optim/data_parallel.h"
#include "thinwire/optim/experts.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/update_rule.h"

namespace thinwire::optim {

/// Creates the optimizer of the dense parameters, which have this layout.
using MakeOptimizer =
    std::function<std::unique_ptr<Optimizer>(const ParameterLayout&)>;

/// Any optimizer for the parameters that all ranks hold, and an update rule for
/// experts. Experts are always averaged exactly, over the ranks that hold them.
/// In a 16-bit model the rule also updates the fp32 parameters, which are
/// averaged exactly over all ranks, in fp32.
///
/// Either both apply a step or neither does. They are clipped by one norm, in
/// which every expert counts once. Gradients of experts are divided by the
/// number of ranks of the dense parameters, so they are means over the whole
/// batch.
///
/// The experts add to the dense optimizer's traffic. Their E ranks send 2
/// (E-1)/E * 4 bytes per expert parameter, or half of that for 16-bit
/// gradients, and 8 bytes per rank.
class ExpertParallel final : public Optimizer {
 public:
  /// Creates the optimizer. Collective. `layout` has the dense parameters
  /// first, then the experts, ordered by communicator. `comm` and the experts'
  /// communicators must outlive this object. In a 16-bit model without experts,
  /// the last `num_wide` elements may be whole fp32 parameters; gradients and
  /// low_precision are then a View::joined(). Throws Error(kInvalidArgument),
  /// and on all ranks if ranks pass different arguments.
  ExpertParallel(comm::Communicator& comm, const ParameterLayout& layout,
                 const std::vector<ExpertGroup>& experts,
                 const MakeOptimizer& make_dense, const MakeRule& make_rule,
                 const ExchangeOptions& options = {}, std::size_t num_wide = 0);
  ~ExpertParallel() override;

  using Optimizer::step;
  StepReport step(const StepInput& input) override;
  using Optimizer::groups;
  [[nodiscard]] ParameterGroups& groups() override;
  /// Returns the dense optimizer's progress, but with lamb_coeffs of all
  /// parameters.
  [[nodiscard]] Progress progress() const override;
  [[nodiscard]] double residual_ratio() const override;
  [[nodiscard]] EarlyGradients* early() override;
  using Optimizer::local_steps;
  [[nodiscard]] LocalSteps* local_steps() override;
  using Optimizer::freeze;
  [[nodiscard]] FreezeStage* freeze() override;
  void set_masters(ConstView params) override;
  /// Returns the dense optimizer's state. If that is a DataParallel, its arrays
  /// continue with the experts. Otherwise the experts have separate arrays,
  /// whose names begin with "experts.".
  [[nodiscard]] State state() const override;
  [[nodiscard]] Adoption adopt(StateDict state) override;
  void require_owner(const StateDict& state) const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::optim
