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

/// Settings of LeanOnebitAdam: those of optim::OnebitAdamOptions but for what
/// needs the variance.
struct LeanOnebitAdamOptions {
  double learning_rate = 1e-3;  ///< Step size, finite, >= 0.
  double beta1 = 0.9;           ///< Momentum decay per step, in [0, 1).
  double beta2 = 0.999;         ///< Variance decay per step, in [0, 1).
  double epsilon = 1e-8;        ///< Keeps the denominator above 0, > 0.
  double weight_decay = 0;      ///< Decoupled (AdamW), per step, finite, >= 0.
  bool bias_correction = true;
  bool epsilon_inside_sqrt = false;  ///< sqrt(v + eps), not sqrt(v) + eps.
  /// One entry per group of the layout, or empty: all alike.
  std::vector<optim::MaskedGroup> groups{};

  /// See optim::OnebitAdamOptions.
  std::optional<std::int64_t> freeze_step{};
  std::optional<std::int64_t> lr_warmup_steps{};
  std::optional<std::int64_t> total_steps{};
  std::int64_t min_freeze_step = 100;
  std::optional<std::int64_t> max_freeze_step{};
  double freeze_ratio = 0.85;

  /// From the freeze on no denominator is below this fraction of its cell's
  /// RMS; finite, >= 0; 0: no floor.
  double denom_floor = 0.3;
  int denominator_bits = 8;  ///< What a denominator is kept in: 8 or 4.
  DType residual_dtype = DType::kBFloat16;  ///< kFloat32 or kBFloat16.
  optim::ExchangeOptions exchange{};

  /// Throws Error(kInvalidArgument) naming the field, its range and its value.
  void validate(const ParameterLayout& layout) const;

  bool operator==(const LeanOnebitAdamOptions&) const = default;
};

/// 1-bit Adam in few bytes: exact steps are those of ZeroOptimizer's stage 1,
/// and what 1-bit Adam then keeps of every parameter is kept in fewer bits. Of
/// the denominator d that is a code of 8 or 4 bits for its logarithm; of
/// masters beside bf16 parameters the 16 bits that parameters lack; of the
/// momentum its signs. Compressed steps send what optim::OnebitAdam sends, but
/// scales are those of cells of the grid of sums. Source: arXiv:2102.02888,
/// Algorithm 1; codes and the split are our own:
/// docs/algorithms/lean-onebit-adam.md.
///
/// Bytes per parameter and rank from the freeze on, bf16 parameters included,
/// of W ranks and without the gradients, which are the caller's: 2 + 2 (the
/// lower bits) + 0.13 (momentum) + 1.02 (denominators) + 2 + 2/W (residuals);
/// 4 bits take 0.5 less, fp32 parameters neither more nor less. Before it
/// 2 + 12/W, or 4 + 8/W with fp32 parameters.
///
/// By host, where hosts of `comm` hold G ranks each, exact steps are those of
/// ZeroOptimizer there, and in compressed ones a host is one worker, as in
/// OnebitAdam. Residuals are then 2/G + 2/W, and means of 16-bit gradients take
/// 4/G.
class LeanOnebitAdam final : public optim::Optimizer {
 public:
  /// Collective. `params`, layout.size() elements of fp32 or bf16 and the same
  /// on all ranks, are the caller's memory, which steps update and which must
  /// outlive this object, as must `comm`. Full values begin as `initial`, fp32
  /// parameters before they were rounded, where it is given. Throws
  /// Error(kInvalidArgument), on all ranks if they give different arguments.
  LeanOnebitAdam(comm::Communicator& comm, const ParameterLayout& layout,
                 View params, const LeanOnebitAdamOptions& options = {},
                 ConstView initial = {});
  /// Waits for what has been sent without a step().
  ~LeanOnebitAdam() override;

  using Optimizer::step;
  /// Collective, done on return. `input.params` is the memory given at
  /// construction, `input.grads` of any float type. The freeze happens within
  /// the last exact step.
  optim::StepReport step(const optim::StepInput& input) override;

  using Optimizer::groups;
  [[nodiscard]] optim::ParameterGroups& groups() override;
  [[nodiscard]] optim::Progress progress() const override;
  [[nodiscard]] double residual_ratio() const override;
  /// It reduces before the freeze, and always in a hierarchical exchange;
  /// otherwise it measures. Ranges are one of buckets(), or adjacent ones. Both
  /// stages have the same buckets.
  [[nodiscard]] optim::EarlyGradients* early() override;
  using Optimizer::freeze;
  [[nodiscard]] optim::FreezeStage* freeze() override;

  /// fp32 values of a parameter, from which parameters are rounded: before the
  /// freeze collective, then local. Throw Error(kInvalidArgument) for a name
  /// that is unknown or a wrong size.
  [[nodiscard]] std::vector<float> full_parameter(std::string_view name);
  /// All ranks give the same values.
  void set_full_parameter(std::string_view name, std::span<const float> values);
  /// Parameters of bf16 become `params` rounded, which are full values from now
  /// on; half of an ulp is rounded away from zero.
  void set_masters(ConstView params) override;

  /// Before the freeze that of ZeroOptimizer; then momentum [n] fp32, formed
  /// as it is read, worker_error and server_error as of LowBitOptimizer,
  /// denominator_codes [n], per cell denominator_lows, denominator_steps,
  /// denominator_medians and denominator_floors, and with bf16 parameters
  /// low_bits_upper and low_bits_lower [n].
  [[nodiscard]] optim::State state() const override;
  /// Also of Adam, sharded or not, and of 1-bit Adam, both before a freeze. To
  /// go back to before the freeze is collective.
  [[nodiscard]] Adoption adopt(StateDict state) override;
  void require_owner(const StateDict& state) const override;
  /// Collective. Parameters are the caller's to restore, but before the freeze
  /// those of bf16, which are gathered from the masters.
  optim::Notes load_state_dict(const StateDict& state) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::lean
