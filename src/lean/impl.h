// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lean/coded_denominators.h"
#include "lean/full_parameters.h"
#include "optim/low_bit/freeze/auto_freeze.h"
#include "optim/low_bit/freeze/freeze_hold.h"
#include "optim/low_bit/freeze/stage_plan.h"
#include "optim/low_bit/gradients/local_gradients.h"
#include "optim/low_bit/model.h"
#include "optim/low_bit/momentum/momentum.h"
#include "thinwire/lean/lean_onebit_adam.h"
#include "thinwire/optim/state.h"
#include "thinwire/zero/shard_layout.h"
#include "thinwire/zero/zero_optimizer.h"

namespace thinwire::lean {

/// What lean 1-bit Adam is made of: ZeRO-1 until the freeze, then 1-bit Adam's
/// own parts over codes. Blocks are what a rank's piece has of one parameter in
/// one cell of the grid of sums, so its shard is what it serves.
struct LeanOnebitAdam::Impl final : optim::EarlyGradients, optim::FreezeStage {
  Impl(comm::Communicator& comm, const ParameterLayout& layout, View params,
       const LeanOnebitAdamOptions& options, ConstView initial);

  // ---- the step: lean_onebit_adam.cpp
  void take_step(const optim::StepInput& in, optim::StepMeter& step);
  void warm_up(const optim::StepInput& in, optim::StepMeter& step);
  void compressed_step(const optim::StepInput& in, optim::StepMeter& step);
  void verify();
  /// As LowBitOptimizer::Impl's.
  optim::MaskChange follow_masks();
  [[nodiscard]] optim::StepReport step(const optim::StepInput& in);
  void require_step(const optim::StepInput& in) const;

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

  // ---- the freeze: freeze.cpp
  void set_gate(optim::FreezeGate gate) override {
    hold.set_gate(std::move(gate));
  }
  [[nodiscard]] std::int64_t frozen_at() const noexcept override {
    return frozen_step;
  }
  /// Collective, after every exact step: whether it was the last one.
  [[nodiscard]] bool freeze_ends(optim::StepMeter& step);
  [[nodiscard]] bool freeze_is_due(optim::StepMeter& step);
  /// Collective: states become codes, lower bits and signs.
  void freeze(optim::StepMeter& step);
  /// body(block, its place in this rank's shard) for all that it serves, shared
  /// out over threads.
  void for_own_blocks(const std::function<void(std::size_t, Range)>& body);
  void encode_denominators(Buffer& factors);
  void gather_parameters(optim::StepMeter& step);
  void keep_momentum(ConstView factors);
  /// Elements of an array over this rank's shard.
  [[nodiscard]] Buffer of_shard(const char* name) const;

  // ---- another stage than a state's: stage.cpp
  static constexpr const char* kFreezeStep = "freeze_step";
  /// After a load the caller's freeze_step may ask for the other one.
  [[nodiscard]] bool will_be_frozen() const;
  /// Collective, before anything of a step: puts it in place.
  void set_stage(optim::StepMeter& step);
  void set_stage();
  [[nodiscard]] optim::Notes note_stage() const;
  void return_to_exact();
  /// Drops all parts of the compressed stage for a new sharded Adam.
  void begin_exact();
  void shard_moments(std::vector<float>& m, std::vector<float>& v);
  [[nodiscard]] std::vector<float> shard_masters();

  // ---- state: state.cpp
  [[nodiscard]] optim::State state() const;
  [[nodiscard]] Adoption adopt(StateDict state);
  [[nodiscard]] Adoption adopt_exact(StateDict state);
  [[nodiscard]] Adoption adopt_frozen(StateDict state);
  struct Common;
  [[nodiscard]] Common read_common(StateDict& state) const;
  void restore(const Common& common);

  [[nodiscard]] bool is_frozen() const { return frozen_step > 0; }
  [[nodiscard]] optim::Phase phase() const {
    return will_be_frozen() ? optim::Phase::kCompressed : optim::Phase::kExact;
  }
  [[nodiscard]] std::unique_ptr<zero::ZeroOptimizer> make_exact(
      ConstView initial) const;

  comm::Communicator& comm;
  const ParameterLayout layout;
  const optim::ExchangeOptions exchange;  // with its buckets, in both stages
  const int denominator_bits;
  const zero::ShardLayout shards;
  optim::LowBitModel model;
  optim::MaskedGroups groups;
  optim::LocalGradients gradients;
  optim::CompressedMomentum momentum;
  CodedDenominators denominators;
  FullParameters full;
  std::unique_ptr<zero::ZeroOptimizer> exact;  // null from the freeze on
  optim::StagePlan plan;
  optim::AutoFreeze automatic;
  optim::FreezeHold hold;
  std::int64_t steps = 0;
  std::int64_t skipped = 0;
  std::int64_t frozen_step = 0;
  bool has_sent_early = false;   // since the last step
  bool is_of_own_state = false;  // which has stages, as Adam's has not
};

}  // namespace thinwire::lean
