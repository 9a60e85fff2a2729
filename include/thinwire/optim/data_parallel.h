// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "thinwire/comm/communicator.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/update_rule.h"

namespace thinwire::optim {

/// Use of the ranks and of their cores. The same on all ranks.
struct ExchangeOptions {
  /// Global L2 norm to which gradients are clipped, finite, >= 0; 0 for no
  /// clipping. In compressed steps no rank has the averaged gradient. They clip
  /// by an estimate of its norm, which exact steps calibrate.
  double max_grad_norm = 0;
  /// Whether compressed steps clip by the gradients' norm before this step,
  /// unless the norm has doubled. A step's exchange then need not wait for the
  /// end of its backward. See docs/algorithms/onebit-adam.md.
  bool lagged_clipping = false;
  /// Whether 1-bit Adam encodes and exchanges buckets during backward. If
  /// gradients are clipped, this needs lagged_clipping. It changes no bit.
  bool during_backward = false;
  /// Elements that are exchanged together; 0 for exchange::bucket_elements().
  /// Results do not depend on it.
  std::size_t bucket_elements = 0;
  /// Steps between two checks, >= 0; 0 for none. A check compares the ranks'
  /// checksums of parameters, schedule and options. If they differ, it throws
  /// Error(kCommFailure) naming the first difference. It reads the parameters
  /// once and sends 8 bytes to each other rank.
  std::int64_t verify_every = 0;
  /// Whether a step changes nothing if any rank has a non-finite gradient.
  /// Otherwise the step is applied, and its results are not finite either. With
  /// fp16 such a step is always skipped, because the loss scale could never
  /// fall otherwise (StepInput::skip_if_any_rank_nonfinite).
  bool skip_nonfinite = true;
  /// Threads of this rank, in [0, 1024]. With 0, THINWIRE_NUM_THREADS decides,
  /// or 1 if that is unset.
  int num_threads = 0;

  /// Checks the options. Throws Error(kInvalidArgument) naming the field, its
  /// range and its value.
  void validate() const;
  /// Returns one line with all options that ranks must have in common.
  [[nodiscard]] std::string describe() const;

  bool operator==(const ExchangeOptions&) const = default;
};

/// Exact data parallelism around an update rule. Every step averages gradients
/// over the ranks in buckets, in the order of Communicator::all_reduce(). It
/// clips them by their global norm and applies the rule on every rank. A rank
/// sends 2 (W-1)/W * 4 bytes per parameter, or half of that for 16-bit
/// gradients.
///
///   optim::DataParallel optimizer(
///       comm, std::make_unique<optim::Adam>(layout, options));
class DataParallel final : public Optimizer {
 public:
  /// Collective: all ranks pass the same rule, layout and options. Otherwise it
  /// throws Error(kInvalidArgument) on all ranks, showing the first difference.
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
  /// Returns the rule's arrays, the same on all ranks. Adam and LAMB have
  /// exp_avg and exp_avg_sq [n], and learning_rates. The scalars are optimizer,
  /// step and skipped_steps.
  [[nodiscard]] State state() const override;
  /// Accepts also a state of the 1-bit optimizer with the same rule, before its
  /// freeze.
  [[nodiscard]] Adoption adopt(StateDict state) override;
  void require_owner(const StateDict& state) const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::optim
