// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/optim/data_parallel.h"
#include "thinwire/optim/experts.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/update_rule.h"
#include "thinwire/precision/loss_scaler.h"
#include "thinwire/zero/copy_engine.h"
#include "thinwire/zero/sharded_optimizer.h"
#include "thinwire/zero/wire_options.h"

namespace thinwire::zero {

/// Kept and called again when states are reloaded.
using optim::ExpertGroup;
using optim::MakeRule;

/// Settings of ZeroOptimizer. What does not change results has a good default.
struct ZeroOptions {
  /// 1: gradients stay whole until the step. 2: each bucket is reduced to its
  /// owners as it fills, and no array of all gradients exists.
  int stage = 1;
  DType dtype = DType::kFloat32;  ///< Of parameters: fp32, fp16 or bf16.
  /// Of what is updated: kFloat32, or `dtype` itself with a rule that takes it.
  DType master_dtype = DType::kFloat32;
  /// Used only with kFloat16.
  precision::LossScalerOptions loss_scale{};
  /// bucket_elements: most elements that are reduced, or gathered, together; 0:
  /// by exchange::bucket_elements() in 16 bits, or in wire.bits_up.
  optim::ExchangeOptions exchange{};
  /// In which gradients travel; unset: `dtype`.
  std::optional<DType> communication_dtype{};
  /// Few bits each way instead.
  WireOptions wire{};
  /// In which several backwards are added up: kFloat32 or `dtype`.
  DType accumulation_dtype = DType::kFloat32;
  bool average = true;  ///< false: gradients are summed over the ranks.
  /// false: a bucket is waited for as soon as it has been sent.
  bool overlap = true;
  /// Masters and states are in host memory and updated there; gradients go
  /// there, and parameters back, by the copy engine.
  bool offload = false;
  /// Null: host memory to host memory, on a thread of its own.
  std::shared_ptr<CopyEngine> copy_engine{};
  /// Groups that are sharded over other ranks. Their gradients are averaged
  /// over the whole batch: divided by the size of the dense communicator.
  std::vector<ExpertGroup> experts{};

  /// Throws Error(kInvalidArgument) naming the field, its range and its value.
  void validate() const;
  /// One line of what ranks must have in common.
  [[nodiscard]] std::string describe() const;
};

/// Exact data parallelism with optimizer states, and at stage 2 gradients,
/// sharded over the ranks (ZeRO, Rajbhandari et al., arXiv:1910.02054; offload:
/// Ren et al., arXiv:2101.06840). Sends 2 (W-1)/W * 2n elements per step: a
/// reduce-scatter of gradients and an all-gather of parameters. Parameters have
/// the same bits as with DataParallel, whatever the ranks, buckets and threads.
/// Departures from DeepSpeed: docs/algorithms/zero.md.
///
/// With options.wire gradients, parameters or both travel in 4 or 8 bits, with
/// error feedback (after Jia et al., SDP4Bit, arXiv:2410.15526): F (n b/8 + 4
/// cells) bytes each way, whatever the number of backwards. Parameters are then
/// replicas, equal on all ranks, that follow the masters. Needs 2n or 4n bytes
/// of residuals more.
///
/// Memory per rank for n parameters of 16 bits and Adam: 2n parameters, 12n/W
/// states, 2n (stage 1) or 2n/W (stage 2) gradients, and a few buckets.
///
///   ZeroOptimizer optimizer(comm, layout,
///                           [options](const ParameterLayout& shard) {
///                             return std::make_unique<optim::Adam>(shard,
///                                                                  options);
///                           },
///                           params, {.stage = 2});
class ZeroOptimizer final : public ShardedOptimizer {
 public:
  /// Collective. `params`, layout.size() elements of options.dtype and the same
  /// on all ranks, are the caller's memory, which steps update and which must
  /// outlive this object, as must `comm`. Masters are made of `initial`, fp32
  /// parameters before they were rounded, where it is given. Throws
  /// Error(kInvalidArgument), on all ranks if they give different arguments.
  ZeroOptimizer(comm::Communicator& comm, const ParameterLayout& layout,
                const MakeRule& make_rule, View params,
                const ZeroOptions& options = {}, ConstView initial = {});
  /// Waits for what has been sent without a step().
  ~ZeroOptimizer() override;

  [[nodiscard]] const ZeroOptions& options() const noexcept;
  [[nodiscard]] double loss_scale() const noexcept override;
  void set_loss_scale(double scale) override;
  [[nodiscard]] const ShardLayout& shards() const noexcept override;
  [[nodiscard]] std::vector<Range> buckets() const override;

  void begin_backward(Backward which) override;
  void collect(std::size_t index, ConstView gradient) override;
  void end_backward() override;
  void cancel_backward() override;
  [[nodiscard]] Late late() const noexcept override;

  using Optimizer::step;
  /// Collective. `input.params` is the memory given at construction;
  /// `input.grads` has layout.size() elements, or none if gradients were handed
  /// over one by one. They arrive multiplied by loss_scale() and
  /// input.loss_scale, which is 1 with wire.bits_up; step() divides both out
  /// before clipping. Throws
  /// Error(kNonFinite) on all ranks, naming a parameter that overflowed, where
  /// the loss scale is at its minimum and is to stop there.
  optim::StepReport step(const optim::StepInput& input) override;
  optim::StepReport step() override;

  [[nodiscard]] std::vector<float> full_parameter(
      std::string_view name) override;
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
  void offload_states() override;
  void reload_states() override;

  using Optimizer::groups;
  [[nodiscard]] optim::ParameterGroups& groups() override;
  [[nodiscard]] optim::Progress progress() const override;
  /// At stage 1. The range of reduce() is one of buckets(), or adjacent ones:
  /// each rank's pieces of `grads` become their average, and the rest is
  /// unspecified. With wire.bits_up all of it stays as it was.
  [[nodiscard]] optim::EarlyGradients* early() override;
  /// This rank's shard: exp_avg, exp_avg_sq and, where they are beside the
  /// parameters, masters; counters, and with fp16 the loss scale's numbers.
  /// With wire also worker_error, this rank's residuals, and replicas, its
  /// pieces of the parameters. Arrays go on over the experts; with wire those
  /// have arrays of their own, prefixed, and there is the scalar expert_groups.
  /// Throws Error(kFailedPrecondition) while states are away.
  [[nodiscard]] optim::State state() const override;
  /// Parameters are the caller's to restore. A state without a loss scale
  /// leaves the one of options.
  [[nodiscard]] Adoption adopt(StateDict state) override;
  void require_owner(const StateDict& state) const override;
  /// Of the same rank of as many, with the same buckets. The parameters are the
  /// caller's to restore, except those of 16 bits, which are gathered from the
  /// masters, and replicas, which are from the state. Collective: what does not
  /// fit on one rank changes nothing on any, and throws there as Optimizer
  /// says, elsewhere with the same code and the text "rank 1 gave up: ...".
  optim::Notes load_state_dict(const StateDict& state) override;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::zero
