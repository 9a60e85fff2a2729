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

/// Settings of ZeroOptimizer. All of them change results.
struct ZeroOptions {
  int stage = 1;                  ///< 1 or 2.
  DType dtype = DType::kFloat32;  ///< Of parameters: fp32, fp16 or bf16.
  precision::LossScalerOptions loss_scale{};  ///< Used only with kFloat16.
  /// Of it max_grad_norm, skip_nonfinite and verify_every; the reference packs
  /// its messages otherwise.
  optim::ExchangeOptions exchange{};
  /// In which sums over the ranks are formed; unset: `dtype`.
  std::optional<DType> communication_dtype{};
  /// Stage 1: in which several backwards are added up: kFloat32 or `dtype`.
  /// Stage 2 adds them up in `dtype`, whatever this says.
  DType accumulation_dtype = DType::kFloat32;
  bool average = true;  ///< false: gradients are summed over the ranks.
  /// Parameters lie in the order of their index modulo the ranks.
  bool round_robin = false;
  bool reduce_scatter = true;  ///< false divides sums, true what is summed.
  /// Without reduce_scatter: divides what is summed, too.
  bool prescale = false;
  /// Without both: the part of the division that comes before the sum; > 0.
  double predivide = 1;

  /// Throws Error(kInvalidArgument) naming the field, its range and its value.
  void validate() const;
  /// One line of what ranks must have in common.
  [[nodiscard]] std::string describe() const;
};

/// DeepSpeed's stages 1 and 2 around torch's Adam, operation by operation, with
/// what is wrong in their arithmetic: gradients are divided before they are
/// added and every addition is rounded, they are unscaled and clipped by the
/// scale of the next step, and stage 2 adds up backwards in the type of the
/// parameters. Written to be compared with, not to be fast or small: every rank
/// keeps an array of all gradients in stage 2 too, and nothing overlaps.
/// docs/algorithms/zero.md has the formulas.
class ZeroOptimizer final : public zero::ShardedOptimizer {
 public:
  /// Collective. `params`, layout.size() elements of options.dtype and the same
  /// on all ranks, are the caller's memory, which steps update and which must
  /// outlive this object, as must `comm`. Masters are made of `initial`, fp32
  /// parameters before they were rounded, where it is given. Throws
  /// Error(kInvalidArgument), on all ranks if they give different arguments.
  ZeroOptimizer(comm::Communicator& comm, const ParameterLayout& layout,
                const optim::AdamOptions& adam, View params,
                const ZeroOptions& options = {}, ConstView initial = {});
  ~ZeroOptimizer() override;

  [[nodiscard]] const ZeroOptions& options() const noexcept;
  [[nodiscard]] double loss_scale() const noexcept override;
  void set_loss_scale(double scale) override;
  /// One bucket per group; a rank's piece of it is its slice.
  [[nodiscard]] const zero::ShardLayout& shards() const noexcept override;
  /// One: nothing leaves before all of it is there.
  [[nodiscard]] std::vector<Range> buckets() const override;

  void begin_backward(Backward which) override;
  void collect(std::size_t index, ConstView gradient) override;
  void end_backward() override;
  void cancel_backward() override;
  [[nodiscard]] Late late() const noexcept override { return {}; }

  using Optimizer::step;
  /// input.loss_scale has to be 1.
  optim::StepReport step(const optim::StepInput& input) override;
  optim::StepReport step() override;

  [[nodiscard]] std::vector<float> full_parameter(
      std::string_view name) override;
  /// `grads` has to be empty.
  [[nodiscard]] std::vector<float> full_gradient(std::string_view name,
                                                 View grads = {}) override;
  [[nodiscard]] std::vector<float> full_state(std::string_view name,
                                              std::string_view key) override;
  void set_full_parameter(std::string_view name,
                          std::span<const float> values) override;
  void set_full_gradient(std::string_view name,
                         std::span<const float> values) override;
  void set_full_state(std::string_view name, std::string_view key,
                      std::span<const float> values) override;
  void set_masters(ConstView params) override;
  /// Throws Error(kUnavailable).
  void offload_states() override;
  /// Throws Error(kFailedPrecondition).
  void reload_states() override;

  using Optimizer::groups;
  [[nodiscard]] optim::ParameterGroups& groups() override;
  [[nodiscard]] optim::Progress progress() const override;
  /// This rank's slices: masters, Adam's states, counters, loss scale; of use
  /// to the same rank of as many only.
  [[nodiscard]] optim::State state() const override;
  /// Parameters are the caller's to restore.
  [[nodiscard]] Adoption adopt(StateDict state) override;
  void require_owner(const StateDict& state) const override;
  /// Collective, like zero::ZeroOptimizer's: all ranks refuse a state together.
  optim::Notes load_state_dict(const StateDict& state) override;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::deepspeed
