// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "optim/auto_freeze.h"
#include "optim/exact_exchange.h"
#include "optim/gradient_clipping.h"
#include "optim/low_bit_layout.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::optim {

/// Steps are in onebit_adam.cpp, saving and loading in onebit_adam_state.cpp.
struct OnebitAdam::Impl {
  Impl(comm::Communicator& c, const ParameterLayout& layout,
       const OnebitAdamOptions& o);

  comm::Communicator& comm;
  OnebitAdamOptions options;
  Policy policy;
  Adam adam;
  ThreadPool pool;
  AutoFreeze freeze;
  LowBitLayout parts;

  bool initialized = true;
  std::int64_t steps = 0;
  std::int64_t skipped = 0;
  std::int64_t frozen_at = 0;  // the last exact step; 0: not frozen
  CalibratedNorm norm;

  // Of the compressed stage.
  std::unique_ptr<compress::CompressedAllReduce> exchange;  // made when needed
  compress::WireObserver* observer = nullptr;
  Buffer denominator;                // takes the variance's place
  std::vector<std::uint8_t> active;  // empty: every element
  bool momentum_is_signs = false;    // exchange->mean(), not adam.exp_avg()

  [[nodiscard]] bool compresses() const { return comm.size() > 1; }
  [[nodiscard]] compress::CompressedAllReduce& the_exchange();

  // ---- one step
  StepReport step(View params, View grads);
  void initialization_step(View params, View grads, StepMeter& meter);
  void exact_step(View params, View grads, StepMeter& meter,
                  StepReport& report);
  void compressed_step(View params, View grads, StepMeter& meter,
                       StepReport& report);

  [[nodiscard]] GradientAgreement agree(ConstView grads, StepMeter& meter);
  void sum(View values, std::span<const GroupRange> which, StepMeter& meter);
  [[nodiscard]] double clip(double grad_norm) const;
  [[nodiscard]] std::vector<kernels::AdamCoefficients> coefficients(
      double grad_scale) const;
  void compressed_update(View params, ConstView grads, double grad_scale,
                         StepMeter& meter);
  void apply_mean(std::size_t block, kernels::Signs mean, View params,
                  const kernels::AdamCoefficients& c);
  void lone_update(View params, ConstView grads, double grad_scale);
  [[nodiscard]] kernels::FrozenUpdateArrays frozen_arrays(Range range,
                                                          View params);
  void observe_exact(ConstView grads);

  // ---- the freeze
  [[nodiscard]] bool is_last_exact_step();
  void enter_compressed_stage();
  void set_active(std::vector<std::uint8_t> elements);

  // ---- state
  [[nodiscard]] Buffer momentum() const;
  [[nodiscard]] StateDict save() const;
  void load(const StateDict& state);
  void load_residuals(const StateDict& state);
};

}  // namespace thinwire::optim
