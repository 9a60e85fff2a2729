// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/precision/loss_scaler.h"
#include "thinwire/precision/low_precision_optimizer.h"

namespace thinwire::precision {

/// Settings of MixedPrecision.
struct MixedPrecisionOptions {
  DType dtype = DType::kFloat16;  ///< Of the parameters: fp16 or bf16.
  /// Of the parameters that are updated: kFloat32, or `dtype`: then the
  /// parameters are their own masters, rounded at every step. That takes an
  /// optimizer which can (exact Adam).
  DType master_dtype = DType::kFloat32;
  /// Used only with kFloat16; bf16 has the range of fp32 and needs no scale.
  LossScalerOptions loss_scale{};

  /// Throws Error(kInvalidArgument) naming the field, its range and its value.
  void validate() const;
};

/// Parameters and gradients of 16 bits around any optimizer, which updates fp32
/// masters (Micikevicius et al., arXiv:1710.03740). One pass over memory finds
/// overflows and the norm, a second one unscales, clips, updates and rounds to
/// 16 bits: 30 bytes per parameter with Adam.
///
/// A gradient that is not finite on any rank skips the step on all ranks, in
/// every phase: masters, states, residuals and counters stay. With fp16 the
/// loss scale then falls; it grows after a while without overflows. With bf16,
/// whose ranks have no scale to agree on, a local step of 0/1 Adam exchanges
/// nothing: the rank concerned leaves it out (ZeroOneAdam). Departures
/// from DeepSpeed: docs/algorithms/mixed-precision.md.
///
/// Some parameters may be fp32 (View::joined), the last ones of the layout:
/// they are given the masters as they are, and their gradients stay fp32. The
/// optimizer is an ExpertParallel that knows how many these are.
///
///   auto params = ...;  // a View of fp16
///   MixedPrecision optimizer(comm, layout, std::move(adam), params, {});
///   ... gradients of loss * optimizer.loss_scale() ...
///   optimizer.step(params, grads);
class MixedPrecision final : public LowPrecisionOptimizer {
 public:
  /// Local. `optimizer` is of the same layout; `initial` has layout.size()
  /// elements of fp32, fp16 or bf16, from which masters are made: 4 bytes per
  /// parameter. Throws Error(kInvalidArgument). `comm` must outlive this
  /// object.
  MixedPrecision(comm::Communicator& comm, const ParameterLayout& layout,
                 std::unique_ptr<optim::Optimizer> optimizer, ConstView initial,
                 const MixedPrecisionOptions& options = {});
  ~MixedPrecision() override;

  [[nodiscard]] double loss_scale() const noexcept override;
  void set_loss_scale(double scale) override;
  [[nodiscard]] ConstView masters() const noexcept override;
  void read_masters(ConstView params) override;
  void write_params(View params) const override;
  /// fp32, fp16 and bf16.
  [[nodiscard]] bool takes_gradients(DType dtype) const noexcept override;

  using Optimizer::step;
  /// `params` is of options.dtype, `grads` fp32 (accumulated) or of 16 bits
  /// (and, as `params`, fp32 at the end, if there are such parameters),
  /// both layout.size() elements. Gradients arrive multiplied by loss_scale()
  /// and input.loss_scale; step() divides both out before clipping. Throws
  /// Error(kNonFinite) on all ranks, naming the first parameter that
  /// overflowed, its rank and the last good step, where the loss scale is at
  /// its minimum and is to stop there.
  optim::StepReport step(const optim::StepInput& input) override;
  void reduce_early(View grads, Range range) override;
  [[nodiscard]] bool reduces_early() const noexcept override;
  [[nodiscard]] std::vector<Range> buckets() const override;
  void measure_early(ConstView grads, Range range) override;
  [[nodiscard]] bool measures_early() const noexcept override;
  void finish_early() override;
  void forget_early() noexcept override;
  void set_freeze_gate(optim::FreezeGate gate) override;
  [[nodiscard]] double residual_ratio() const override;
  [[nodiscard]] std::vector<double> lamb_coeffs() const override;
  void synchronize(View params) override;
  [[nodiscard]] std::int64_t steps() const noexcept override;
  [[nodiscard]] std::int64_t skipped_steps() const noexcept override;
  [[nodiscard]] optim::Phase phase() const noexcept override;
  using Optimizer::set_learning_rate;
  void set_learning_rate(std::size_t group, double learning_rate) override;
  [[nodiscard]] double learning_rate(std::size_t group) const override;
  void set_weight_decay(std::size_t group, double weight_decay) override;
  [[nodiscard]] double weight_decay(std::size_t group) const override;
  [[nodiscard]] std::optional<std::int64_t> freeze_step() const override;
  void set_exp_avg_mask(std::size_t group,
                        std::span<const float> mask) override;
  [[nodiscard]] std::vector<std::string> take_notes() override;
  [[nodiscard]] std::size_t num_groups() const noexcept override;
  /// The optimizer's, with the array masters [n], the same on all ranks: within
  /// local steps those of the last exchange; and with fp16 the loss scale's
  /// numbers.
  [[nodiscard]] optim::State state() const override;
  /// A state without a loss scale leaves the one of options.
  [[nodiscard]] Adoption adopt(StateDict state) override;
  /// Of the masters, which are then rounded into `params`, of options.dtype.
  void repeat_local_steps(View params) override;
  [[nodiscard]] ConstView exchanged_params(ConstView params) const override;
  [[nodiscard]] std::int64_t steps_behind() const noexcept override;
  /// The parameters of 16 bits are the caller's: write_params() rounds them
  /// anew.
  void load_state_dict(const StateDict& state) override;
  [[nodiscard]] StateDict owner() const override;
  void require_owner(const StateDict& state) const override;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::precision
