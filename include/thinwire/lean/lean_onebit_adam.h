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
#include "thinwire/optim/data_parallel.h"
#include "thinwire/optim/onebit_adam.h"
#include "thinwire/optim/optimizer.h"

namespace thinwire::lean {

/// Settings of LeanOnebitAdam, which are those of optim::OnebitAdamOptions
/// without the ones that need the variance.
struct LeanOnebitAdamOptions {
  double learning_rate = 1e-3;  ///< Step size, finite, >= 0.
  double beta1 = 0.9;           ///< Momentum decay per step, in [0, 1).
  double beta2 = 0.999;         ///< Variance decay per step, in [0, 1).
  double epsilon = 1e-8;        ///< Positive; keeps the denominator above 0.
  double weight_decay = 0;      ///< Decoupled (AdamW), per step, finite, >= 0.
  bool bias_correction = true;
  bool epsilon_inside_sqrt = false;  ///< Use sqrt(v + eps).
  /// One entry per group of the layout, or none if all groups are alike.
  std::vector<optim::MaskedGroup> groups{};

  optim::FreezeOptions freeze{};  ///< End of the exact steps.
  int denominator_bits = 8;       ///< Bits of a denominator's code: 8 or 4.
  /// Compressed steps and their exchange.
  optim::CompressionOptions compression{};

  /// Checks the options. Throws Error(kInvalidArgument) with the field, its
  /// range and its value.
  void validate(const ParameterLayout& layout) const;

  bool operator==(const LeanOnebitAdamOptions&) const = default;
};

/// 1-bit Adam with low-bit state. Exact steps are those of ZeroOptimizer's
/// stage 1. After the freeze it keeps three states in fewer bits than 1-bit
/// Adam does. Each denominator is an 8-bit or 4-bit code for its logarithm. For
/// masters of bf16 parameters it keeps only the 16 bits that bf16 lacks. The
/// momentum is stored as signs. Compressed steps send the same data as
/// optim::OnebitAdam, but with one scale per cell (exchange/block_layout.h).
/// Source: arXiv:2102.02888, Algorithm 1. Departures: the codes and the split
/// of parameters are Thinwire's own; see docs/algorithms/lean-onebit-adam.md.
///
/// Bytes per parameter and rank after the freeze, for W ranks, without the
/// caller's gradients:
///   2             bf16 parameters
///   2             their lower bits
///   0.13          momentum
///   1.02          denominators; 0.5 less with 4 bits
///   2 + 2/W       residuals
/// With fp32 parameters the sum is the same. Before the freeze, with exact
/// averages, it is 2 + 12/W, or 4 + 8/W with fp32 parameters.
///
/// If `comm` is hierarchical, with G ranks on each host, exact steps are those
/// of a hierarchical ZeroOptimizer. In compressed steps a host is one worker,
/// as in OnebitAdam. Residuals then take 2/G + 2/W bytes, and means of 16-bit
/// gradients 4/G.
class LeanOnebitAdam final : public optim::Optimizer {
 public:
  /// Creates the optimizer. `params` has layout.size() elements of fp32 or
  /// bf16, equal on all ranks. Steps update this memory, which belongs to the
  /// caller; it and `comm` must outlive this object. If `initial` is given, it
  /// holds the fp32 parameters before they were rounded. Throws
  /// Error(kInvalidArgument), and on all ranks if ranks pass different
  /// arguments. Collective.
  LeanOnebitAdam(comm::Communicator& comm, const ParameterLayout& layout,
                 View params, const LeanOnebitAdamOptions& options = {},
                 ConstView initial = {});
  /// Waits for exchanges in flight that no step() has used.
  ~LeanOnebitAdam() override;

  using Optimizer::step;
  /// Runs a step. `input.params` is the memory given at construction, and
  /// `input.grads` has any float type. The freeze is part of the last exact
  /// step. Collective and blocking.
  optim::StepReport step(const optim::StepInput& input) override;

  using Optimizer::groups;
  [[nodiscard]] optim::ParameterGroups& groups() override;
  [[nodiscard]] optim::Progress progress() const override;
  [[nodiscard]] double residual_ratio() const override;
  /// Returns the work that can begin early. Before the freeze, and always in a
  /// hierarchical exchange, that is reduce(); otherwise measure(). A range must
  /// be one of buckets() or several adjacent ones. Both stages have the same
  /// buckets.
  [[nodiscard]] optim::EarlyGradients* early() override;
  using Optimizer::freeze;
  [[nodiscard]] optim::FreezeStage* freeze() override;

  /// Returns the fp32 values of a parameter, before they are rounded to its
  /// dtype. Collective before the freeze, local after it. Throws
  /// Error(kInvalidArgument) for an unknown name.
  [[nodiscard]] std::vector<float> full_parameter(std::string_view name);
  /// Sets the fp32 values of a parameter, which must be equal on all ranks.
  /// Collective before the freeze, local after it. Throws
  /// Error(kInvalidArgument) for an unknown name or a wrong size.
  void set_full_parameter(std::string_view name, std::span<const float> values);
  /// Keeps `params` as the fp32 values, and rounds them to bf16 parameters.
  /// Ties are rounded away from zero.
  void set_masters(ConstView params) override;

  /// Returns the state of ZeroOptimizer before the freeze, and the following
  /// arrays after it. momentum [n] is fp32 and computed while it is read.
  /// worker_error and server_error are those of LowBitOptimizer.
  /// denominator_codes has [n] elements. Per cell there are denominator_lows,
  /// denominator_steps, denominator_medians and denominator_floors. With bf16
  /// parameters there are low_bits_upper and low_bits_lower [n].
  [[nodiscard]] optim::State state() const override;
  /// Adopts a state. It may also be from Adam (sharded or not), or from 1-bit
  /// Adam before its freeze. Collective if it returns to the stage before the
  /// freeze.
  [[nodiscard]] Adoption adopt(StateDict state) override;
  void require_owner(const StateDict& state) const override;
  /// Loads a state. Collective. The caller restores the parameters, except bf16
  /// ones before the freeze, which are gathered from the masters.
  optim::Notes load_state_dict(const StateDict& state) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::lean
