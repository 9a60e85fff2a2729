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
#include "thinwire/zero/sharded_optimizer.h"
#include "thinwire/zero/wire_options.h"

namespace thinwire::zero {

/// Expert groups, and the factory of update rules. The optimizer keeps the
/// factory and calls it again when a state is loaded.
using optim::ExpertGroup;
using optim::MakeRule;

/// Settings of ZeroOptimizer. The defaults of fields that do not affect results
/// suit most runs.
struct ZeroOptions {
  /// Stage, 1 or 2. At stage 1, gradients are kept in full until the step. At
  /// stage 2, each bucket is reduced to its owners as soon as it is full, so
  /// that no array of all gradients exists.
  int stage = 1;
  /// Dtype of the parameters: fp32, fp16 or bf16.
  DType dtype = DType::kFloat32;
  /// Dtype of the values that are updated: kFloat32, or `dtype` if the rule
  /// accepts it.
  DType master_dtype = DType::kFloat32;
  /// Used only with kFloat16.
  precision::LossScalerOptions loss_scale{};
  /// Options of the exchange. bucket_elements is the largest number of elements
  /// that are reduced or gathered together. If it is 0,
  /// exchange::bucket_elements() decides, for 16 bits or for wire.bits_up.
  optim::ExchangeOptions exchange{};
  /// Dtype in which gradients are sent. If unset, it is `dtype`.
  std::optional<DType> communication_dtype{};
  /// Low-bit communication in each direction.
  WireOptions wire{};
  /// Dtype in which several backwards are accumulated: kFloat32 or `dtype`.
  DType accumulation_dtype = DType::kFloat32;
  /// Whether gradients are averaged. Otherwise they are summed over the ranks.
  bool average = true;
  /// Whether exchanges overlap with backward. Otherwise the caller waits after
  /// each bucket is sent.
  bool overlap = true;
  /// Groups that are sharded over other ranks. The sums of their gradients are
  /// divided by the size of the dense communicator, which gives the mean over
  /// the whole batch.
  std::vector<ExpertGroup> experts{};

  /// Checks the options. Throws Error(kInvalidArgument) with the field, its
  /// range and its value.
  void validate() const;
  /// Returns one line with all options that must be equal on all ranks.
  [[nodiscard]] std::string describe() const;
};

/// Exact data parallelism with optimizer states, and at stage 2 gradients,
/// sharded over the ranks. Source: ZeRO, Rajbhandari et al., arXiv:1910.02054.
/// A step sends 2 (W-1)/W * n elements: a reduce-scatter of gradients and an
/// all-gather of parameters. Parameters have the same bits as with
/// DataParallel, for any number of ranks, buckets and threads. Departures from
/// DeepSpeed: docs/algorithms/zero.md.
///
/// With options.wire gradients, parameters or both are sent in 4 or 8 bits with
/// error feedback. Source: after Jia et al., SDP4Bit, arXiv:2410.15526. In each
/// direction a rank then sends (W-1)/W times n b/8 bytes and 4 bytes per block.
/// This does not depend on the number of backwards. Parameters are then
/// replicas, equal on all ranks, that follow the masters. The residuals take
/// another 2n to 8n bytes.
///
/// Bytes per rank with Adam, for n parameters of 16 bits: 2n for parameters,
/// 12n/W for states, and a few buckets. Gradients take 2n at stage 1 and 2n/W
/// at stage 2.
///   ZeroOptimizer optimizer(comm, layout,
///                           [options](const ParameterLayout& shard) {
///                             return std::make_unique<optim::Adam>(shard,
///                                                                  options);
///                           },
///                           params, {.stage = 2});
class ZeroOptimizer final : public ShardedOptimizer {
 public:
  /// Creates the optimizer. Collective. `params` has layout.size() elements of
  /// options.dtype, equal on all ranks. Steps update this memory, which belongs
  /// to the caller; it and `comm` must outlive this object. If `initial` is
  /// given, it has the fp32 parameters before rounding, from which masters
  /// start. Throws Error(kInvalidArgument) for invalid arguments. If arguments
  /// differ between ranks, all ranks throw it.
  ZeroOptimizer(comm::Communicator& comm, const ParameterLayout& layout,
                const MakeRule& make_rule, View params,
                const ZeroOptions& options = {}, ConstView initial = {});
  /// Waits for exchanges in flight that no step() has used.
  ~ZeroOptimizer() override;

  [[nodiscard]] const ZeroOptions& options() const noexcept;
  [[nodiscard]] double loss_scale() const noexcept override;
  void set_loss_scale(double scale) override;
  [[nodiscard]] const ShardLayout& shards() const noexcept override;
  [[nodiscard]] exchange::GradientWindow& gradients() noexcept override;
  [[nodiscard]] WholeValues& whole_values() noexcept override;

  using Optimizer::step;
  /// Runs a step. Collective. `input.params` is the memory given at
  /// construction. `input.grads` has layout.size() elements, or is empty if
  /// gradients() received them one by one. Gradients are multiplied by
  /// loss_scale() and input.loss_scale, and step() divides by both before
  /// clipping. With wire.bits_up, input.loss_scale must be 1. Throws
  /// Error(kNonFinite) on all ranks if the loss scale is at its minimum and
  /// options.loss_scale requires a stop there. The error names a parameter that
  /// overflowed.
  optim::StepReport step(const optim::StepInput& input) override;
  optim::StepReport step() override;

  void set_masters(ConstView params) override;

  using Optimizer::groups;
  [[nodiscard]] optim::ParameterGroups& groups() override;
  [[nodiscard]] optim::Progress progress() const override;
  /// Returns the interface for reducing gradients before step(), or null at
  /// stage 2. reduce() accepts one of buckets() or several adjacent ones. Each
  /// rank's pieces of `grads` receive their average, and the rest is
  /// unspecified. With wire.bits_up, `grads` does not change.
  [[nodiscard]] optim::EarlyGradients* early() override;
  /// Returns this rank's shard: exp_avg, exp_avg_sq, counters, and the masters
  /// if these are separate from the parameters. With fp16 it also has the loss
  /// scale and its counters. With wire it also has worker_error, this rank's
  /// residuals, and replicas, its pieces of the parameters. Without wire, each
  /// array ends with the experts' elements. With wire, experts have separate
  /// arrays, whose names have a prefix, and the scalar expert_groups.
  [[nodiscard]] optim::State state() const override;
  /// Adopts a state. The caller then restores the parameters. If the state has
  /// no loss scale, that of the options is kept.
  [[nodiscard]] Adoption adopt(StateDict state) override;
  void require_owner(const StateDict& state) const override;
  /// Loads a state of the same rank, number of ranks and buckets. Collective.
  /// The caller restores the parameters. It need not restore 16-bit ones, which
  /// are gathered from the masters, nor replicas, which come from the state. If
  /// the state does not fit on one rank, nothing changes on any rank. That rank
  /// throws like Optimizer::load_state_dict(). The others throw the same code
  /// with the text "rank 1 gave up: ...".
  optim::Notes load_state_dict(const StateDict& state) override;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::zero
