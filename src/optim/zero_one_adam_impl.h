// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "optim/low_bit.h"
#include "optim/zero_one_schedule.h"
#include "thinwire/optim/zero_one_adam.h"

namespace thinwire::optim {

/// Steps are in zero_one_adam.cpp, the sync in zero_one_sync.cpp, schedule and
/// state in zero_one_adam_state.cpp.
struct ZeroOneAdamImpl final : LowBitOptimizer::Impl {
  ZeroOneAdamImpl(comm::Communicator& c, const ParameterLayout& layout,
                  const ZeroOneAdamOptions& o);

  ZeroOneAdamOptions options;
  ZeroOneSchedule schedule;
  std::int64_t var_updates = 0;
  // From the freeze on.
  Buffer origin;                 // theta: parameters at the last sync
  Buffer accumulator;            // u: this rank's updates since
  bool accumulated = false;      // false: u is 0 everywhere, whatever it holds
  std::vector<double> lrs;       // per group, learning rates since
  std::vector<double> decay;     // delta, per group: decay since
  std::vector<double> mean_lrs;  // lrs of the sync whose mean is the momentum

  // Every step knows by its own scalar exchange that gradients are finite.
  void adjust(compress::CompressedAllReduceOptions& o) const override {
    o.checks_finite = false;
  }

  // ---- steps
  void take_step(const StepInput& in, StepMeter& meter,
                 StepReport& report) override;
  void variance_step(const StepInput& in, StepMeter& meter, StepReport& report);
  void one_bit_step(const StepInput& in, StepMeter& meter, StepReport& report);
  void freeze(View params);
  void frozen_step(const StepInput& in, StepMeter& meter, StepReport& report);
  void local_step(const StepInput& in,
                  std::span<const kernels::AdamCoefficients> c);

  void leave_out_step();
  void begin_variance(std::size_t element, float d) override;

  [[nodiscard]] bool is_frozen() const {
    return steps >= options.var_freeze_step;
  }
  [[nodiscard]] std::vector<kernels::AdamCoefficients> variance_coefficients(
      double grad_scale) const;
  [[nodiscard]] std::optional<double> clip_locally(const StepInput& in,
                                                   StepMeter& meter,
                                                   StepReport& report);
  /// The lowest rank that says so; -1: none.
  [[nodiscard]] int first_rank(bool own, StepMeter& meter);
  void for_blocks(const std::function<void(std::size_t)>& body) {
    pool.for_each(parts.blocks.blocks().size(), body);
  }

  // ---- the sync
  using Input = compress::CompressedAllReduce::Source;
  void sync(View params, View low_precision, const Input& input);
  void sync_alone(View params);
  void synchronize(View params) override;
  [[nodiscard]] kernels::SignInput sync_input(
      std::size_t b, ConstView grads,
      std::span<const kernels::AdamCoefficients> c) const;
  [[nodiscard]] kernels::Signs mean_momentum(std::size_t b) const override;
  void keep_momentum_of_resting_groups(
      ConstView grads, std::span<const kernels::AdamCoefficients> c);
  void merge_momenta();
  void begin_interval();
  [[nodiscard]] bool some_group_rests() const;
  [[nodiscard]] bool some_group_moved() const;
  [[nodiscard]] bool ranks_are_equal() const override {
    return !is_frozen() || !accumulated || !some_group_moved();
  }

  // ---- schedule and state
  [[nodiscard]] Phase phase() const override;
  [[nodiscard]] std::string describe_schedule() const override;
  void save_own(StateDict& state) const override;
  [[nodiscard]] Commit read_own(const StateDict& state) override;
};

[[nodiscard]] LowBitSettings settings_of(const ZeroOneAdamOptions& options);

/// The reference's arithmetic: gradients are exchanged before the freeze, decay
/// goes through the accumulator, and a sync leaves rounding behind that differs
/// from rank to rank.
[[nodiscard]] std::unique_ptr<LowBitOptimizer::Impl>
make_deepspeed_zero_one_adam(comm::Communicator& comm,
                             const ParameterLayout& layout,
                             const ZeroOneAdamOptions& options);

}  // namespace thinwire::optim
