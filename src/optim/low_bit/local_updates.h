// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "optim/low_bit/denominator.h"

namespace thinwire::optim {

/// What 0/1 Adam does after its variance is frozen (arXiv:2202.06009): each
/// rank takes steps of its own and adds up its updates u since the last sync;
/// a sync averages u over the ranks, times the denominator, as a momentum would
/// be: u d = -(sum of learning rates) m, so it gives the new momentum too.
class LocalUpdates {
 public:
  LocalUpdates(LowBitModel& model, CompressedMomentum& momentum,
               Denominator& denominator);

  /// At the freeze: theta = p, u = 0.
  void begin(ConstView params);
  /// Every step, taken or left out: its learning rates and its decay count.
  void count(const Coefficients& c);
  /// m = beta1 m + (1 - beta1) g_i,  u = u - lr (m^ / d),  p = decay theta + u.
  void step(const StepInput& in, const Coefficients& c);
  /// This rank leaves the step out.
  void leave_out();
  /// Collective: this step, of which the others' is part, and the sync after
  /// it:  theta = decay theta + mean_i u_i,  p = theta,  u = 0.
  void sync(const StepInput& in, const Coefficients& c, StepMeter& step);
  /// The sync of a group of one, whose step has been taken.
  void sync_alone(View params);
  /// Collective: a sync between steps, where ranks differ.
  void synchronize(View params);

  [[nodiscard]] bool some_group_moved() const;
  [[nodiscard]] bool ranks_are_equal() const {
    return !accumulated_ || !some_group_moved();
  }

  void save(StateDict& state, bool is_frozen) const;
  struct Saved {
    Buffer origin;
    Buffer accumulator;
    bool accumulated = false;
    std::vector<double> lrs;
    std::vector<double> decay;
  };
  [[nodiscard]] Saved read(const StateDict& state, bool is_frozen) const;
  void restore(Saved&& saved);

 private:
  using Input = compress::CompressedAllReduce::Source;
  void exchange(View params, View low_precision, const Input& input);
  [[nodiscard]] kernels::SignInput own_input(std::size_t b, ConstView grads,
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
  Buffer origin_;              // theta: parameters at the last sync
  Buffer accumulator_;         // u: this rank's updates since
  bool accumulated_ = false;   // false: u is 0 everywhere, whatever it holds
  std::vector<double> lrs_;    // per group, learning rates since
  std::vector<double> decay_;  // per group, decay since
};

}  // namespace thinwire::optim
