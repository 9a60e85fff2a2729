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

/// Decides when ranks sync. An interval begins with the first local step and
/// after every sync.
struct Schedule {
  std::int64_t behind = 0;   ///< Local steps since the last sync.
  std::int64_t length = 1;   ///< Present interval, if intervals grow.
  std::int64_t counter = 0;  ///< Local steps since the length was last doubled.
  std::int64_t syncs = 0;    ///< Syncs since the warm-up.

  void took_local_step(const OuterOptions& options) noexcept;
  [[nodiscard]] std::int64_t interval(
      const OuterOptions& options) const noexcept;
  /// Lists the parts of the state and returns the number of steps behind in it.
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
  /// Makes `now` and the anchor equal on all ranks. `scratch` is empty or has
  /// the same number of fp32 elements.
  void sync(View now, View scratch, bool in_step, optim::StepMeter& meter);
  /// Throws Error(kCommFailure) on all ranks if `equal`, counters or learning
  /// rates differ between them. Collective.
  void require_equal(ConstView equal);
  void verify(ConstView equal);
  /// Combines summaries of ranks that are in the same step and call. Collective
  /// over `ranks`.
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
  /// Lists the parts that belong neither to the inner optimizer nor to the
  /// owners. Returns whether the state is local.
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
  const std::unique_ptr<const comm::HostGroups> groups;  // null if flat
  // Averages gradients inside a host, whose ranks form one worker.
  const std::unique_ptr<exchange::ExactAverage> inside;
  std::unique_ptr<comm::Communicator> own_comm;  // contains only this rank
  std::unique_ptr<optim::Optimizer> inner;
  WarmUp warm_up;
  Buffer anchor;  // a
  std::unique_ptr<zero::ZeroOptimizer> owners;
  std::uint32_t number;  // this object's optimizer_number()

  optim::StepCounts counts;
  optim::FirstAgreements first_agreements;
  optim::CalibratedNorm norm;  // rho
  Schedule schedule;
  bool is_local = false;         // true after the warm-up
  bool left_out_a_step = false;  // only on this rank, since the last sync
  bool verification_is_due = false;
  int unreported_rank = -1;  // rank that skipped a step, found by synchronize()
  double changed = 0;        // RMS norm of the ranks' changes in the last sync
  View params{};             // parameters of the last local step
  Buffer restored_params;    // this rank's, until the next step or repeat()
};

}  // namespace thinwire::outer
