// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "optim/low_bit/denominator/denominator.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// Steps of 0/1 Adam after its variance is frozen (arXiv:2202.06009). Each rank
/// takes local steps and adds up its updates u since the last sync. A sync
/// averages u times the denominator over the ranks as if it were a momentum: u
/// d = -(sum of learning rates) m. It therefore also yields the new momentum.
class LocalUpdates final : public LocalSteps {
 public:
  LocalUpdates(LowBitModel& model, CompressedMomentum& momentum,
               Denominator& denominator);

  /// Sets theta = p and u = 0, at the freeze.
  void begin(ConstView params);
  /// Restarts with other parameters and keeps the momentum.
  void begin_anew(ConstView params);
  /// Ends this stage after ranks are equal, because the variance may change
  /// again.
  void end();
  /// Counts the learning rates and the decay of a step, whether taken or left
  /// out.
  void count(const Coefficients& c);
  /// Computes m = beta1 m + (1 - beta1) g_i,  u = u - lr (m^ / d),  p = decay
  /// theta + u. Passes the ranges of p to `tell`.
  void step(const StepInput& in, const Coefficients& c, const FinalRange& tell);
  /// Leaves out a step on this rank.
  void leave_out();
  /// Moves elements that masks exclude back to theta.
  void leave_out(std::span<const std::size_t> elements);
  /// Takes a step whose update is part of the exchange, and syncs: theta =
  /// decay theta + mean_i u_i, p = theta, u = 0. Collective.
  void sync(const StepInput& in, const Coefficients& c, StepMeter& step);
  /// Performs the sync of a single rank, which has already taken its step.
  void sync_alone(View params, View low_precision);

  [[nodiscard]] bool some_group_moved() const;
  [[nodiscard]] bool ranks_are_equal() const {
    return !interval_.accumulated || !some_group_moved();
  }

  // ---- between syncs, for the caller
  /// Returns the number of steps since the last sync, if parameters may differ
  /// from theta.
  [[nodiscard]] std::int64_t steps_behind() const noexcept override {
    return ranks_are_equal() ? 0 : interval_.steps;
  }
  /// Syncs between steps if ranks differ.
  void synchronize(View params) override;
  /// Returns theta if parameters differ from it.
  [[nodiscard]] ConstView exchanged_params(ConstView params) const override {
    return steps_behind() == 0 ? params : origin_.view();
  }
  /// Computes from theta the `params` that the last step() produced.
  void repeat(View params) override;
  /// Returns whether exp_avg may differ between ranks.
  [[nodiscard]] bool momenta_differ() const { return interval_.momenta_differ; }

  // ---- state
  /// Lists these data in a state, in which the variance `is_frozen` or not. If
  /// another number of ranks has saved it, each rank starts from the mean of
  /// the ranks' own data.
  void list(StateParts& parts, bool is_frozen);
  /// The steps since the last sync.
  struct Interval {
    bool accumulated = false;  // if false, u counts as 0 regardless of its
                               // contents
    bool momenta_differ = false;
    std::int64_t steps = 0;           // equal on all ranks
    std::int64_t taken = 0;           // steps that this rank has not left out
    std::vector<double> lrs;          // per group, sum of the learning rates
    std::vector<double> decay;        // per group
    std::vector<double> decay_taken;  // decay at the last step taken
  };

 private:
  using Input = exchange::SignExchange::Source;
  struct Output {
    View params;
    View low_precision;
    const FinalRange& tell;
  };
  void exchange(const Output& to, const Input& input);
  [[nodiscard]] kernels::SignInput own_input(std::size_t b, View grads,
                                             const Coefficients& c) const;
  void apply_mean(std::size_t b, kernels::Signs mean, View params,
                  View low_precision);
  [[nodiscard]] bool some_group_rests() const;
  void keep_momentum_of_resting_groups(ConstView grads, const Coefficients& c);
  void merge_momenta();
  void begin_interval();

  LowBitModel& model_;
  CompressedMomentum& momentum_;
  Denominator& denominator_;
  Buffer origin_;       // theta, the parameters at the last sync
  Buffer accumulator_;  // u, this rank's updates since then
  Interval interval_;
};

}  // namespace thinwire::optim
