// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/optim/adam.h"
#include "thinwire/optim/data_parallel.h"
#include "thinwire/precision/loss_scaler.h"
#include "thinwire/zero/sharded_optimizer.h"

namespace thinwire::deepspeed {

/// Settings of ZeroOptimizer.
struct ZeroOptions {
  int stage = 1;  ///< 1 or 2.
  /// Dtype of the parameters: fp32, fp16 or bf16.
  DType dtype = DType::kFloat32;
  precision::LossScalerOptions loss_scale{};  ///< Used only with kFloat16.
  /// Options of the exchange. Only max_grad_norm, skip_nonfinite, verify_every
  /// and num_threads have an effect, because DeepSpeed packs its messages
  /// differently.
  optim::ExchangeOptions exchange{};
  /// Dtype in which sums over the ranks are computed. If unset, it is `dtype`.
  std::optional<DType> communication_dtype{};
  /// Dtype in which stage 1 accumulates several backwards: kFloat32 or `dtype`.
  /// Stage 2 always accumulates them in `dtype`.
  DType accumulation_dtype = DType::kFloat32;
  /// Whether gradients are averaged. Otherwise they are summed over the ranks.
  bool average = true;
  /// Whether parameters are ordered by their index modulo the number of ranks.
  bool round_robin = false;
  bool reduce_scatter = true;  ///< Divide each rank's gradient before the sum
                               ///< instead of dividing the sum.
  /// Divide before the sum even if `reduce_scatter` is false.
  bool prescale = false;
  /// Part of the division that precedes the sum if `reduce_scatter` and
  /// `prescale` are false; > 0.
  double predivide = 1;

  /// Checks the options. Throws Error(kInvalidArgument) with the field, its
  /// range and its value.
  void validate() const;
  /// Returns one line with all options that must be equal on all ranks.
  [[nodiscard]] std::string describe() const;
};

/// DeepSpeed's stages 1 and 2 around torch's Adam, operation by operation,
/// including the mistakes in their arithmetic. Gradients are divided before
/// they are added, and every sum is rounded. They are unscaled and clipped by
/// the scale of the next step. Stage 2 accumulates backwards in the parameters'
/// dtype. The class is meant for comparisons and is neither fast nor small.
/// Even at stage 2 every rank keeps an array of all gradients, and nothing
/// overlaps. docs/algorithms/zero.md has the formulas.
class ZeroOptimizer final : public zero::ShardedOptimizer {
 public:
  /// Creates the optimizer. Collective. `params` has layout.size() elements of
  /// options.dtype, equal on all ranks. Steps update this memory, which belongs
  /// to the caller; it and `comm` must outlive this object. If `initial` is
  /// given, it has the fp32 parameters before rounding, from which masters
  /// start. Throws Error(kInvalidArgument), and on all ranks if ranks pass
  /// different arguments.
  ZeroOptimizer(comm::Communicator& comm, const ParameterLayout& layout,
                const optim::AdamOptions& adam, View params,
                const ZeroOptions& options = {}, ConstView initial = {});
  ~ZeroOptimizer() override;

  [[nodiscard]] const ZeroOptions& options() const noexcept;
  [[nodiscard]] double loss_scale() const noexcept override;
  void set_loss_scale(double scale) override;
  /// Returns the layout, which has one bucket per group. A rank's piece of a
  /// bucket is its slice.
  [[nodiscard]] const zero::ShardLayout& shards() const noexcept override;
  /// Returns the window, whose only bucket is never sent.
  [[nodiscard]] exchange::GradientWindow& gradients() noexcept override;
  [[nodiscard]] zero::WholeValues& whole_values() noexcept override;

  using Optimizer::step;
  /// Runs a step; input.loss_scale must be 1.
  optim::StepReport step(const optim::StepInput& input) override;
  optim::StepReport step() override;

  void set_masters(ConstView params) override;

  using Optimizer::groups;
  [[nodiscard]] optim::ParameterGroups& groups() override;
  [[nodiscard]] optim::Progress progress() const override;
  /// Returns this rank's slices of masters and of Adam's states, the counters
  /// and the loss scale. The state can be loaded only by the same rank in a run
  /// with the same number of ranks.
  [[nodiscard]] optim::State state() const override;
  /// Adopts a state. The caller then restores the parameters.
  [[nodiscard]] Adoption adopt(StateDict state) override;
  void require_owner(const StateDict& state) const override;
  /// Loads a state. Collective, like zero::ZeroOptimizer's: if it does not fit
  /// on one rank, all ranks reject it.
  optim::Notes load_state_dict(const StateDict& state) override;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::deepspeed
