// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "optim/step_pieces.h"
#include "precision/loss_scale.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/deepspeed/zero_optimizer.h"
#include "thinwire/exchange/gradient_window.h"
#include "zero/checks.h"

namespace thinwire::deepspeed {

/// One step of torch.optim.Adam or AdamW for one group. Its numbers are
/// computed in double and rounded once.
struct TorchAdamStep {
  float decay = 1;     ///< Factor applied to parameters first (AdamW).
  float l2_decay = 0;  ///< Factor of p that is added to the gradient (Adam).
  float beta1 = 0;
  float one_minus_beta1 = 1;
  float beta2 = 0;
  float one_minus_beta2 = 1;
  float root_of_correction2 = 1;
  float epsilon = 0;
  float minus_step_size = 0;

  /// Returns the numbers of step `step` (1, 2, ...). Throws
  /// Error(kInvalidArgument) for options that torch's Adam does not have.
  [[nodiscard]] static TorchAdamStep of(const optim::AdamOptions& options,
                                        double learning_rate,
                                        std::int64_t step);
};

/// Arrays of one size. All of them except `grads` are updated.
struct TorchAdamArrays {
  std::span<float> params;
  std::span<float> exp_avg;
  std::span<float> exp_avg_sq;
  std::span<const float> grads;
};

/// Performs torch's operations in torch's order and rounds each of them, so
/// that the last bits differ from those of kernels::adam.
void torch_adam(const TorchAdamStep& step, const TorchAdamArrays& arrays);

struct ZeroOptimizer::Impl final : exchange::GradientSink, zero::WholeValues {
  Impl(comm::Communicator& c, const ParameterLayout& l,
       const optim::AdamOptions& rule, View p, const ZeroOptions& settings);

  // ---- gradients
  [[nodiscard]] DType sum_dtype() const noexcept;
  bool begin(exchange::Backward which) override;
  void check(std::size_t parameter, ConstView gradient) const override;
  void store(const exchange::GradientPart& part) override;
  // Never called, because begin() returns false.
  bool send(std::size_t /*bucket*/) override { return false; }
  // Reduces the gradients of a complete backward. Collective.
  void end() override;
  void clear() override { has_averaged = false; }
  void reduce();
  void finish();

  // ---- the step; collective
  void take_step(optim::StepReport& report, optim::StepMeter& meter);
  [[nodiscard]] bool overflows();
  [[nodiscard]] std::int64_t first_nonfinite() const;
  [[nodiscard]] float scaled_norm();
  [[nodiscard]] float clip_divisor(float total) const;
  [[nodiscard]] float unscaling_factor(float clip) const;
  void update(float factor);
  void gather_params();

  // ---- whole values: masters, the gradient, or a moment
  [[nodiscard]] View array(std::string_view what);
  [[nodiscard]] std::vector<float> read(std::size_t parameter,
                                        std::string_view what,
                                        View grads) override;
  void write(std::size_t parameter, std::string_view what,
             std::span<const float> values) override;

  comm::Communicator& comm;
  const ParameterLayout layout;
  const View params;
  const ZeroOptions options;
  precision::LossScale scale;
  ThreadPool pool;
  const zero::ShardLayout shards;
  const std::size_t rank;
  const std::vector<zero::Fragment> fragments;  // fragments of this rank
  optim::Adam adam;
  // Values of this rank's slices, like Adam's states. Padding is always 0 and
  // is not stored.
  Buffer masters;
  Buffer averaged;
  // Values of all parameters in flat order: group by group, each in the order
  // of its slices.
  Buffer sums;
  std::vector<std::size_t> places;  // offset of each parameter in flat order
  bool has_averaged = false;
  exchange::GradientWindow window;
  optim::StepCounts counts;
};

}  // namespace thinwire::deepspeed
