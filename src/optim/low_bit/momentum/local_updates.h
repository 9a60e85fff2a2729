// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "optim/low_bit/denominator/denominator.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// The steps of 0/1 Adam after its variance is frozen (arXiv:2202.06009). Each
/// rank takes steps of its own and adds up its updates u since the last sync. A
/// sync averages u times the denominator over the ranks, as if it were a
/// momentum: u d = -(sum of learning rates) m. So it results in the new
/// momentum, too.
class LocalUpdates final : public LocalSteps {
 public:
  LocalUpdates(LowBitModel& model, CompressedMomentum& momentum,
               Denominator& denominator);

  /// Sets theta = p and u = 0, at the freeze.
  void begin(ConstView params);
  /// Does so again with other parameters; the momentum stays.
  void begin_anew(ConstView params);
  /// Ends this stage, once ranks are equal, as the variance may change again.
  void end();
  /// Counts a step's learning rates and decay, whether it is taken or left out.
  void count(const Coefficients& c);
  /// Computes m = beta1 m + (1 - beta1) g_i,  u = u - lr (m^ / d),  p = decay
  /// theta + u. Passes the ranges of p to `tell`.
  void step(const StepInput& in, const Coefficients& c, const FinalRange& tell);
  /// Leaves the step out on this rank.
  void leave_out();
  /// Moves elements that masks exclude back to theta.
  void leave_out(std::span<const std::size_t> elements);
  /// Takes this step, part of which the others send, and the sync after it:
  /// theta = decay theta + mean_i u_i,  p = theta,  u = 0. Collective.
  void sync(const StepInput& in, const Coefficients& c, StepMeter& step);
  /// Computes the sync of a single rank, whose step has been taken.
  void sync_alone(View params, View low_precision);

  [[nodiscard]] bool some_group_moved() const;
  [[nodiscard]] bool ranks_are_equal() const {
    return !interval_.accumulated || !some_group_moved();
  }

  // ---- between syncs, for the caller
  /// Returns the steps since the last sync, if parameters may differ from
  /// theta.
  [[nodiscard]] std::int64_t steps_behind() const noexcept override {
    return ranks_are_equal() ? 0 : interval_.steps;
  }
  /// Syncs between steps, if ranks differ.
  void synchronize(View params) override;
  /// Returns theta, if parameters differ from it.
  [[nodiscard]] ConstView exchanged_params(ConstView params) const override {
    return steps_behind() == 0 ? params : origin_.view();
  }
  /// Computes from theta what the last step() has made of `params`.
  void repeat(View params) override;
  /// Returns whether exp_avg may differ from rank to rank.
  [[nodiscard]] bool momenta_differ() const { return interval_.momenta_differ; }

  // ---- state
  /// Lists what a state keeps of them, which is `is_frozen` or not. If another
  /// number of ranks has saved it, each takes the ranks' mean for what it has
  /// done itself.
  void list(StateParts& parts, bool is_frozen);
  /// The steps since the last sync.
  struct Interval {
    bool accumulated = false;  // false: u is 0 everywhere, whatever it holds
    bool momenta_differ = false;
    std::int64_t steps = 0;   // by all ranks
    std::int64_t taken = 0;   // of them, those that this rank has not left out
    std::vector<double> lrs;  // per group, learning rates
    std::vector<double> decay;        // per group
    std::vector<double> decay_taken;  // the same at the last one taken
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
  Buffer origin_;       // theta: parameters at the last sync
  Buffer accumulator_;  // u: this rank's updates since
  Interval interval_;
};

}  // namespace thinwire::optim
