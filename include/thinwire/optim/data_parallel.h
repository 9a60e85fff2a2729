// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "thinwire/comm/communicator.h"
#include "thinwire/optim/average_options.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/update_rule.h"

namespace thinwire::optim {

/// Settings of the exchange and of its threads, which must be equal on all
/// ranks.
struct ExchangeOptions {
  /// Global L2 norm to which gradients are clipped, finite, >= 0; 0 for no
  /// clipping. In compressed steps no rank has the averaged gradient, so
  /// clipping uses an estimate of its norm, which exact steps calibrate.
  double max_grad_norm = 0;
  /// Whether compressed steps clip by the previous steps' norm, unless the norm
  /// has doubled. See docs/algorithms/common.md.
  bool lagged_clipping = false;
  /// Whether the momentum of 1-bit Adam is exchanged during the next forward
  /// and backward. Meanwhile each rank uses parameters that its own momentum
  /// has moved; LocalSteps::exchanged_params() returns the common parameters.
  /// See docs/algorithms/onebit-adam.md.
  bool under_next_step = false;
  /// Number of elements that are exchanged together; 0 for
  /// exchange::bucket_elements(). Results do not depend on it.
  std::size_t bucket_elements = 0;
  /// Steps between two checks, >= 0; 0 for none. A check compares the ranks'
  /// checksums of parameters, schedule and options. If they differ, it throws
  /// Error(kCommFailure) naming the first difference. It reads the parameters
  /// once and sends 8 bytes to each other rank.
  std::int64_t verify_every = 0;
  /// Whether a step is skipped if any rank has a non-finite gradient. Otherwise
  /// the step is applied, and its results are not finite either. With fp16 such
  /// a step is always skipped, because the loss scale could never fall
  /// otherwise (StepInput::skip_if_any_rank_nonfinite).
  bool skip_nonfinite = true;
  /// Threads of this rank, in [0, 1024]. 0 stands for THINWIRE_NUM_THREADS or,
  /// if that is unset, for 1.
  int num_threads = 0;

  /// Checks the options. Throws Error(kInvalidArgument) with the field, its
  /// range and its value.
  void validate() const;
  /// Returns one line with all options that must be equal on all ranks.
  [[nodiscard]] std::string describe() const;

  bool operator==(const ExchangeOptions&) const = default;
};

/// Data parallelism for an update rule. Every step averages gradients over the
/// ranks, clips the average by its global norm, and applies the rule on every
/// rank. By default averages are exact, in buckets, in the order of
/// Communicator::all_reduce(). A rank then sends 2 (W-1)/W * 4 bytes per
/// parameter, or half of that for 16-bit gradients.
///
/// AverageOptions select averages in 4 or 8 bits or as low-rank products. These
/// are kept in fp32. They need 8 + 8/W more bytes per parameter (12 + 8/W with
/// `low_rank`), and another 4 for 16-bit gradients. A skipped step changes
/// neither residuals nor factors.
///  optim::DataParallel optimizer(
///      comm, std::make_unique<optim::Adam>(layout, options));
class DataParallel final : public Optimizer {
 public:
  /// Creates the optimizer. Collective. If ranks pass different rules, layouts
  /// or options, throws Error(kInvalidArgument) on all ranks, with the first
  /// difference. `comm` must outlive this object.
  DataParallel(comm::Communicator& comm, std::unique_ptr<UpdateRule> rule,
               const ExchangeOptions& options = {},
               const AverageOptions& average = {});
  ~DataParallel() override;

  using Optimizer::step;
  StepReport step(const StepInput& input) override;
  using Optimizer::groups;
  [[nodiscard]] ParameterGroups& groups() override;
  [[nodiscard]] Progress progress() const override;
  [[nodiscard]] EarlyGradients* early() override;
  /// Returns the rule's arrays, which are equal on all ranks: for Adam and LAMB
  /// exp_avg and exp_avg_sq [n], and learning_rates. The scalars are optimizer,
  /// step and skipped_steps. Unless averages are exact, each rank also has
  /// residuals, and with `low_rank` all ranks have the same factors. In these
  /// cases, throws Error(kFailedPrecondition) between reduce() and step().
  [[nodiscard]] State state() const override;
  /// Adopts a state, also that of the 1-bit optimizer with the same rule,
  /// before its freeze. Residuals of gradients are kept if AverageOptions
  /// differ; data that cannot be used is dropped with a note. A single rank
  /// adds residuals of several ranks to its first gradient.
  [[nodiscard]] Adoption adopt(StateDict state) override;
  void require_owner(const StateDict& state) const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::optim
