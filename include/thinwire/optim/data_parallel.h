// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "thinwire/comm/communicator.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/update_rule.h"

namespace thinwire::optim {

/// How an optimizer uses its ranks and cores; the same for all of them.
struct ExchangeOptions {
  /// Gradients are clipped to this global L2 norm; 0: never. Finite, >= 0. In
  /// compressed steps, whose averaged gradient nobody has, by an estimate of
  /// its norm that exact steps calibrate.
  double max_grad_norm = 0;
  /// In compressed steps, clip by what the gradients' norm was before this
  /// step, unless it has doubled: then a step's exchange need not wait for the
  /// end of its backward. docs/algorithms/onebit-adam.md.
  bool lagged_clipping = false;
  /// 1-bit Adam: encode and exchange buckets while backward goes on. Needs
  /// lagged_clipping where gradients are clipped; changes no bit.
  bool during_backward = false;
  /// Elements that travel together; 0: by exchange::bucket_elements(). Results
  /// do not depend on it.
  std::size_t bucket_elements = 0;
  /// Every so many steps ranks compare checksums of their parameters, schedule
  /// and options, and stop with Error(kCommFailure) naming the first that
  /// differs; 0: never. >= 0. Reads the parameters once and sends 8 bytes.
  std::int64_t verify_every = 0;
  /// A step with a gradient that is not finite on any rank changes nothing.
  /// Otherwise it is taken, and what follows is not finite either; not in fp16,
  /// whose loss scale could never fall (StepInput::skip_if_any_rank_nonfinite).
  bool skip_nonfinite = true;
  /// Threads of this rank, in [0, 1024]; 0: THINWIRE_NUM_THREADS, else 1.
  int num_threads = 0;

  /// Throws Error(kInvalidArgument) naming the field, its range and its value.
  void validate() const;
  /// One line of what ranks must have in common.
  [[nodiscard]] std::string describe() const;

  bool operator==(const ExchangeOptions&) const = default;
};

/// Exact data parallelism around an update rule: gradients are averaged over
/// the ranks in buckets (summed in rank order, then divided), clipped by their
/// global norm, and applied on every rank. Sends 2 (W-1)/W * 4 bytes per
/// parameter and rank, half of it for gradients of 16 bits.
///
///   optim::DataParallel optimizer(
///       comm, std::make_unique<optim::Adam>(layout, options));
class DataParallel final : public Optimizer {
 public:
  /// Collective: all ranks give the same rule, layout and options, else
  /// Error(kInvalidArgument) on all of them shows the first difference.
  /// `comm` must outlive this object.
  DataParallel(comm::Communicator& comm, std::unique_ptr<UpdateRule> rule,
               const ExchangeOptions& options = {});
  ~DataParallel() override;

  using Optimizer::step;
  StepReport step(const StepInput& input) override;
  using Optimizer::groups;
  [[nodiscard]] ParameterGroups& groups() override;
  [[nodiscard]] Progress progress() const override;
  [[nodiscard]] EarlyGradients* early() override;
  /// Arrays exp_avg and exp_avg_sq [n], the same on all ranks, and
  /// learning_rates; scalars optimizer, step and skipped_steps.
  [[nodiscard]] State state() const override;
  /// Also of the 1-bit optimizer of the same rule, before its freeze.
  [[nodiscard]] Adoption adopt(StateDict state) override;
  void require_owner(const StateDict& state) const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::optim
