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

/// Makes the optimizer of the dense parameters, whose layout this is.
using MakeOptimizer =
    std::function<std::unique_ptr<Optimizer>(const ParameterLayout&)>;

/// Any optimizer for the parameters that all ranks hold, and an update rule for
/// experts, which are always averaged exactly, over the ranks that hold them.
/// In a model of 16 bits the rule also has the fp32 parameters, which are
/// averaged exactly over all ranks, in fp32.
/// Both take a step or neither does; they are clipped by one norm, in which
/// every expert counts once. Gradients of experts are divided by the ranks of
/// the dense parameters: they are means over the whole batch.
///
/// Sends, beside what the dense optimizer sends, 2 (E-1)/E * 4 bytes per
/// expert's parameter among its E ranks, half of it for gradients of 16 bits,
/// and 8 bytes per rank.
class ExpertParallel final : public Optimizer {
 public:
  /// Collective. In `layout` dense parameters come first, then the experts of
  /// one communicator after those of another. `comm` and the experts'
  /// communicators must outlive this object. The last `num_wide` elements are
  /// whole parameters that are fp32 beside others of 16 bits, and then there
  /// are no experts: gradients may be a View::joined() there, and low_precision
  /// is one. Throws Error(kInvalidArgument), on all ranks if they give
  /// different arguments.
  ExpertParallel(comm::Communicator& comm, const ParameterLayout& layout,
                 const std::vector<ExpertGroup>& experts,
                 const MakeOptimizer& make_dense, const MakeRule& make_rule,
                 const ExchangeOptions& options = {}, std::size_t num_wide = 0);
  ~ExpertParallel() override;

  using Optimizer::step;
  StepReport step(const StepInput& input) override;
  using Optimizer::groups;
  [[nodiscard]] ParameterGroups& groups() override;
  /// That of the dense parameters' optimizer, with all parameters' lamb_coeffs.
  [[nodiscard]] Progress progress() const override;
  [[nodiscard]] double residual_ratio() const override;
  [[nodiscard]] EarlyGradients* early() override;
  using Optimizer::local_steps;
  [[nodiscard]] LocalSteps* local_steps() override;
  using Optimizer::freeze;
  [[nodiscard]] FreezeStage* freeze() override;
  void set_masters(ConstView params) override;
  /// The dense optimizer's, whose arrays go on over the experts if it is
  /// DataParallel; beside another one the experts' have names that begin with
  /// "experts.".
  [[nodiscard]] State state() const override;
  [[nodiscard]] Adoption adopt(StateDict state) override;
  void require_owner(const StateDict& state) const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::optim
