// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "exchange/exact_average.h"
#include "optim/gradient_agreement.h"
#include "optim/saved_state.h"
#include "optim/state_parts.h"
#include "optim/step_pieces.h"
#include "outer/warm_up.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/outer/outer_loop.h"
#include "thinwire/zero/zero_optimizer.h"

namespace thinwire::outer {

/// When ranks sync. Intervals begin with the first local step and with every
/// sync.
struct Schedule {
  std::int64_t behind = 0;   ///< Local steps since the last sync.
  std::int64_t length = 1;   ///< Of the present interval, if intervals grow.
  std::int64_t counter = 0;  ///< Local steps since the length has doubled.
  std::int64_t syncs = 0;    ///< Since the warm-up.

  void took_local_step(const OuterOptions& options) noexcept;
  [[nodiscard]] std::int64_t interval(
      const OuterOptions& options) const noexcept;
  /// Returns the steps behind in the state.
  std::int64_t list(optim::StateParts& parts);
};

struct OuterLoop::Impl final : optim::LocalSteps {
  Impl(comm::Communicator& c, const ParameterLayout& l,
       const MakeInner& make_inner, const OuterOptions& o,
       const optim::ExchangeOptions& e);

  [[nodiscard]] bool is_warming_up() const noexcept {
    return !is_local && counts.steps < options.warmup_steps;
  }
  [[nodiscard]] bool skips(const optim::StepInput& in) const noexcept;
  bool take_inner_step(const optim::StepInput& in, optim::StepReport& report);
  void warm_up_step(const optim::StepInput& in, optim::StepMeter& meter);
  void local_step(const optim::StepInput& in, optim::StepMeter& meter);
  void begin_local_steps(View now);
  void subtract_from_anchor(ConstView now, View difference);
  /// Makes `now` and the anchor the same on all ranks. `scratch` has as many
  /// fp32 elements, or none.
  void sync(View now, View scratch, bool in_step, optim::StepMeter& meter);
  /// Throws Error(kCommFailure) on all ranks if they differ in `equal`, in
  /// counters or in learning rates. Collective.
  void require_equal(ConstView equal);
  void verify(ConstView equal);
  /// Agrees on a summary, of ranks in the same step and call. Collective over
  /// `ranks`.
  [[nodiscard]] optim::Agreement agree(comm::Communicator& ranks,
                                       optim::GradientSummary own, bool in_step,
                                       optim::StepMeter& meter);

  [[nodiscard]] std::int64_t steps_behind() const noexcept override {
    return schedule.behind;
  }
  void synchronize(View now) override;
  [[nodiscard]] ConstView exchanged_params(ConstView now) const override;
  void repeat(View now) override;

  // ---- the state: state.cpp
  [[nodiscard]] optim::State state();
  /// Lists what is neither the inner optimizer's nor the owners'. Returns
  /// whether the state is local.
  bool list(optim::StateParts& parts);
  [[nodiscard]] optim::Optimizer::Adoption adopt(StateDict state);
  [[nodiscard]] double residual_ratio() const;
  /// Copies the momentum of this rank's elements.
  [[nodiscard]] Buffer own_momentum() const;

  comm::Communicator& comm;
  const ParameterLayout layout;
  const OuterOptions options;
  const optim::ExchangeOptions exchange;
  ThreadPool pool;
  const std::unique_ptr<const comm::HostGroups> groups;  // null: flat
  // Averages gradients inside a host, whose ranks are one worker.
  const std::unique_ptr<exchange::ExactAverage> inside;
  std::unique_ptr<comm::Communicator> own_comm;  // of this rank only
  std::unique_ptr<optim::Optimizer> inner;
  WarmUp warm_up;
  Buffer anchor;  // a
  std::unique_ptr<zero::ZeroOptimizer> owners;
  std::uint32_t number;  // of this object, see optimizer_number()

  optim::StepCounts counts;
  optim::FirstAgreements first_agreements;
  optim::CalibratedNorm norm;  // rho
  Schedule schedule;
  bool is_local = false;         // the warm-up is over
  bool left_out_a_step = false;  // this rank alone, since the last sync
  bool verification_is_due = false;
  int unreported_rank = -1;  // that synchronize() has found to have left out
  double changed = 0;        // RMS norm of the ranks' changes in the last sync
  View params{};             // those of the last local step
  Buffer restored_params;    // of this rank, until the next step or repeat()
};

}  // namespace thinwire::outer
