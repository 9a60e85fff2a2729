// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lean/coded_denominators.h"
#include "lean/full_parameters.h"
#include "optim/low_bit/freeze/freeze_point.h"
#include "optim/low_bit/gradients/local_gradients.h"
#include "optim/low_bit/model.h"
#include "optim/low_bit/momentum/momentum.h"
#include "thinwire/lean/lean_onebit_adam.h"
#include "thinwire/optim/state.h"
#include "thinwire/zero/shard_layout.h"
#include "thinwire/zero/zero_optimizer.h"

namespace thinwire::lean {

/// Lean 1-bit Adam as a composition: ZeRO-1 until the freeze, then the parts of
/// 1-bit Adam over codes. A block is the part of a parameter in one cell of the
/// grid of sums, within one rank's piece. Each rank therefore serves its own
/// shard.
struct LeanOnebitAdam::Impl final : optim::EarlyGradients {
  Impl(comm::Communicator& comm, const ParameterLayout& layout, View params,
       const LeanOnebitAdamOptions& options, ConstView initial);

  [[nodiscard]] optim::StepReport step(const optim::StepInput& in);

  // ---- before the step
  [[nodiscard]] bool reduces() const noexcept override {
    return !will_be_frozen() || model.host != nullptr;
  }
  void reduce(View grads, Range range) override;
  [[nodiscard]] std::vector<Range> buckets() const override;
  [[nodiscard]] bool measures() const noexcept override { return !reduces(); }
  void measure(ConstView grads, Range range) override;
  void finish() override {
    if (model.host) model.host->finish_early();
  }
  void forget() noexcept override { gradients.forget_early(); }

  [[nodiscard]] optim::Phase phase() const {
    return will_be_frozen() ? optim::Phase::kCompressed : optim::Phase::kExact;
  }

  /// Returns whether exact steps send gradients and parameters in `warmup_bits`
  /// bits.
  [[nodiscard]] bool sends_low_bits() const {
    return warmup_bits != 0 && comm.size() > 1;
  }

  // ---- state: state.cpp
  [[nodiscard]] optim::State state();
  [[nodiscard]] Adoption adopt(StateDict state);

  comm::Communicator& comm;
  const ParameterLayout layout;
  const optim::ExchangeOptions exchange;  // with the buckets of both stages
  const int denominator_bits;
  const optim::WarmupBits bits_of_options;
  // Bits of gradients and parameters until the freeze. On a single rank they
  // matter only for a state and for residuals restored from several ranks.
  int warmup_bits;
  const zero::ShardLayout shards;
  optim::LowBitModel model;
  optim::MaskedGroups groups;
  optim::LocalGradients gradients;
  optim::CompressedMomentum momentum;
  CodedDenominators denominators;
  FullParameters full;
  std::unique_ptr<zero::ZeroOptimizer> exact;  // null after the freeze
  optim::FreezePoint freeze;
  std::int64_t steps = 0;
  std::int64_t skipped = 0;
  bool has_sent_early = false;  // since the last step

 private:
  // ---- the step: lean_onebit_adam.cpp
  void take_step(const optim::StepInput& in, optim::StepMeter& step);
  void warm_up(const optim::StepInput& in, optim::StepMeter& step);
  void compressed_step(const optim::StepInput& in, optim::StepMeter& step);
  void verify();
  /// Applies changed masks, like LowBitOptimizer::Impl::follow_masks().
  optim::MaskChange follow_masks();
  void require_step(const optim::StepInput& in) const;
  [[nodiscard]] std::unique_ptr<zero::ZeroOptimizer> make_exact(
      ConstView initial) const;

  // ---- the freeze: freeze.cpp
  [[nodiscard]] bool is_frozen() const { return freeze.is_frozen(); }
  /// Returns the bias-corrected L1 norm of the variance. Collective.
  [[nodiscard]] double norm_of_variance(optim::StepMeter& step);
  /// Turns states into codes, lower bits and signs. Collective.
  void begin_compression(optim::StepMeter& step);
  /// Calls body(block, its range in this rank's shard) for all blocks that this
  /// rank serves, on several threads.
  void for_own_blocks(const std::function<void(std::size_t, Range)>& body);
  void encode_denominators(Buffer& factors);
  void gather_parameters(optim::StepMeter& step);
  void keep_momentum(ConstView factors);
  /// Carries over the gradients' residuals from a low-bit warm-up.
  void inherit_residuals(double clip_factor);
  /// Returns this rank's array of the exact stage's state.
  [[nodiscard]] Buffer of_exact(const char* name) const;

  // ---- a stage other than the state's: freeze.cpp
  /// Returns whether the next step is compressed. After a load, the caller's
  /// freeze_step may name another stage than the state has.
  [[nodiscard]] bool will_be_frozen() const {
    return is_frozen() ? !freeze.must_return(steps) : freeze.must_end(steps);
  }
  /// Enters the stage of the next step, before anything else in it. Collective.
  void set_stage(optim::StepMeter& step);
  void set_stage();
  [[nodiscard]] optim::Notes note_stage() const;
  void return_to_exact();
  /// Discards all states and creates those of exact steps.
  void begin_exact();
  void shard_moments(std::vector<float>& m, std::vector<float>& v);
  [[nodiscard]] std::vector<float> shard_masters();

  // ---- state: state.cpp
  [[nodiscard]] Adoption adopt_exact(StateDict state);
  [[nodiscard]] Adoption adopt_frozen(StateDict state);
  void gather_replicas();
  /// Lists the parts of a state before or after the freeze, except those that
  /// `exact` saves.
  void list(optim::StateParts& parts, bool is_compressed);
};

}  // namespace thinwire::lean
