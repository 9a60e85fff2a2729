// SPDX-License-Identifier: Apache-2.0
// Keys and refusals of what travels in few bits.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "config/text.h"
#include "support/errors.h"
#include "thinwire/config/config.h"

namespace thinwire::config::low_bit_wire_test {
namespace {

using test::read;

TEST(LowBitWireConfig, ReadsZeroWithLowBits) {
  const Config config = read(R"({"zero_optimization": {"stage": 2},
      "bf16": {"enabled": true},
      "thinwire": {"zero_bits_up": 4, "zero_bits_down": 8,
                   "zero_after_skip": "keep", "residual_dtype": "fp32"}})");
  const zero::WireOptions expected{.bits_up = 4,
                                   .bits_down = 8,
                                   .residual_dtype = DType::kFloat32,
                                   .after_skip = zero::AfterSkip::kKeep};
  EXPECT_EQ(config.zero.wire, expected);
  EXPECT_NO_THROW(config.validate(2));
  EXPECT_EQ(read("{}").zero.wire, zero::WireOptions{});
}

TEST(LowBitWireConfig, ReadsAveragesOfExactOptimizers) {
  const Config config = read(R"({"optimizer": {"type": "Lamb"},
      "thinwire": {"low_rank": 8, "first_steps": 30, "first_bits": 8,
                   "total_steps": 400}})");
  const optim::AverageOptions expected{
      .low_rank = 8, .first_steps = 30, .first_bits = 8, .total_steps = 400};
  EXPECT_EQ(config.average, expected);
  EXPECT_NO_THROW(config.validate(2));
  EXPECT_EQ(read(R"({"thinwire": {"bits": 4}})").average.bits, 4);
  EXPECT_EQ(read("{}").average, optim::AverageOptions{});
}

TEST(LowBitWireConfig, ReadsLeanOnebitAdam) {
  const Config config = read(R"({
      "optimizer": {"type": "OneBitAdam",
        "params": {"lr": 0.01, "betas": [0.8, 0.99], "eps": 1e-6,
          "weight_decay": 0.1, "freeze_step": 40}},
      "bf16": {"enabled": true},
      "thinwire": {"lean": true, "denominator_bits": 4, "denom_floor": 0.1}})");
  const lean::LeanOnebitAdamOptions expected{
      .learning_rate = 0.01,
      .beta1 = 0.8,
      .beta2 = 0.99,
      .epsilon = 1e-6,
      .weight_decay = 0.1,
      .freeze = {.step = 40},
      .denominator_bits = 4,
      .compression = {.denom_floor = 0.1}};
  EXPECT_EQ(std::get<lean::LeanOnebitAdamOptions>(config.optimizer), expected);
  EXPECT_EQ(name_of(config.optimizer), "lean_onebit_adam");
  EXPECT_NO_THROW(config.validate(2));
  const Config plain = read(R"({"optimizer": {"type": "OneBitAdam"},
      "thinwire": {"lean": false}})");
  EXPECT_EQ(name_of(plain.optimizer), "onebit_adam");
  EXPECT_FALSE(std::get<optim::OnebitAdamOptions>(plain.optimizer)
                   .compression.residual_dtype);
}

TEST(LowBitWireConfig, TellsOptimizersWhatTheirExchangeIs) {
  const Config config = read(R"({"optimizer": {"type": "OneBitAdam"},
      "thinwire": {"lagged_clipping": true}})");
  EXPECT_TRUE(config.exchange_options().lagged_clipping);
  EXPECT_FALSE(config.exchange_options().under_next_step);
  EXPECT_NO_THROW(config.validate(2));
  const Config under = read(R"({"optimizer": {"type": "OneBitAdam"},
      "thinwire": {"compressed_under_next_step": true}})");
  EXPECT_TRUE(under.exchange_options().under_next_step);
  EXPECT_NO_THROW(under.validate(2));
}

struct Refusal {
  std::function<void(Config&)> change;
  std::string text;
};

void expect_refused(const Config& base, const Refusal& refusal, int world) {
  SCOPED_TRACE(refusal.text);
  ASSERT_NO_THROW(base.validate(world));
  Config config = base;
  refusal.change(config);
  thinwire::test::expect_invalid({refusal.text},
                                 [&] { config.validate(world); });
}

TEST(LowBitWireConfig, RefusesWhatAveragesCannotGoWithAndNamesAnother) {
  Config base;
  base.average.low_rank = 8;
  const std::vector<Refusal> refusals = {
      {[](Config& c) { c.average.bits = 4; },
       "bits must be 0 with low_rank = 8, got 4"},
      {[](Config& c) { c.average = {.first_steps = 3}; },
       "first_steps must be left out without low_rank"},
      {[](Config& c) { c.average = {.bits = 4, .first_bits = 8}; },
       "first_bits must be left out without low_rank, got 8"},
      {[](Config& c) { c.zero.stage = 1; },
       "low_rank must be 0 with ZeRO: use thinwire.zero_bits_up and "
       "thinwire.zero_bits_down, got 8"},
      {[](Config& c) {
         c.average = {.bits = 4};
         c.zero.stage = 2;
       },
       "bits must be 0 with ZeRO"},
      {[](Config& c) { c.optimizer = optim::OnebitAdamOptions{}; },
       "low_rank must be 0 with onebit_adam: warmup_bits averages"},
      {[](Config& c) { c.optimizer = lean::LeanOnebitAdamOptions{}; },
       "low_rank must be 0 with lean_onebit_adam: warmup_bits averages"},
      {[](Config& c) { c.outer.sync_every = 4; },
       "low_rank must be 0 with an outer loop (thinwire.outer): "
       "outer.warmup_bits averages"},
      {[](Config& c) { c.semantics = Semantics::kDeepSpeed; },
       "semantics must be corrected with low_rank"},
      {[](Config& c) { c.communication_dtype = DType::kBFloat16; },
       "communication_dtype must be unset with low_rank"}};
  for (const Refusal& refusal : refusals) expect_refused(base, refusal, 2);
}

TEST(LowBitWireConfig, RefusesOptionsThatExcludeLowBits) {
  Config base;
  base.zero.stage = 2;
  base.zero.wire = {.bits_up = 4, .bits_down = 4};
  const std::vector<Refusal> refusals = {
      {[](Config& c) { c.zero.stage = 0; },
       "(zero_optimization.stage) must be 1 or 2 with zero.wire.bits_up"},
      {[](Config& c) { c.zero.wire.residual_dtype = DType::kFloat16; },
       "residual_dtype must be float32 or bfloat16"},
      {[](Config& c) { c.semantics = Semantics::kDeepSpeed; },
       "semantics must be corrected with zero.wire.bits_up"},
      {[](Config& c) { c.communication_dtype = DType::kBFloat16; },
       "communication_dtype must be unset with zero.wire.bits_up"},
      {[](Config& c) {
         c.train_micro_batch_size_per_gpu = 1;
         c.gradient_accumulation_steps = 2;
         c.zero.wire.residual_dtype = DType::kBFloat16;
       },
       "(thinwire.residual_dtype) must be float32"},
      {[](Config& c) {
         c.managed_gradient_accumulation = false;
         c.zero.wire.residual_dtype = DType::kBFloat16;
       },
       "(thinwire.residual_dtype) must be float32"},
      {[](Config& c) { c.optimizer = optim::OnebitAdamOptions{}; },
       "(zero_optimization.stage) must be 0 with onebit_adam"}};
  for (const Refusal& refusal : refusals) expect_refused(base, refusal, 2);

  base.zero.wire.bits_up = 0;
  base.communication_dtype = DType::kBFloat16;
  base.managed_gradient_accumulation = false;
  EXPECT_NO_THROW(base.validate(2));  // what comes up is exact
  base.communication_dtype.reset();
  base.zero.wire = {.bits_up = 8, .residual_dtype = DType::kFloat32};
  EXPECT_NO_THROW(base.validate(2));
  base.zero.stage = 1;
  base.zero.wire.residual_dtype = DType::kBFloat16;
  EXPECT_NO_THROW(base.validate(2));  // sums of their own
}

TEST(LowBitWireConfig, AddsBackwardsUpInFp32UnlessToldOtherwise) {
  Config config = read(R"({"train_micro_batch_size_per_gpu": 1,
      "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 2},
      "thinwire": {"zero_bits_up": 4, "zero_bits_down": 4}})");
  EXPECT_NO_THROW(config.validate(2));
  EXPECT_EQ(config.wire_options(2).residual_dtype, DType::kFloat32);
  EXPECT_EQ(read(config.to_json()), config);
  Config unknown = config;
  unknown.gradient_accumulation_steps = 1;
  EXPECT_EQ(unknown.wire_options(2).residuals(), DType::kBFloat16);
  unknown.managed_gradient_accumulation = false;
  EXPECT_EQ(unknown.wire_options(2).residual_dtype, DType::kFloat32);
  config.zero.stage = 1;  // sums of their own
  EXPECT_EQ(config.wire_options(2).residuals(), DType::kBFloat16);
}

TEST(LowBitWireConfig, SaysWhatToUseInsteadOfZeroWithLowBitOptimizers) {
  const auto instead = [](OptimizerConfig optimizer, std::string text) {
    Config base;
    base.optimizer = std::move(optimizer);
    expect_refused(base, {[](Config& c) { c.zero.stage = 1; }, std::move(text)},
                   2);
  };
  instead(optim::OnebitAdamOptions{},
          "use thinwire.lean, which shards by itself, or Adam with "
          "thinwire.zero_bits_up");
  instead(optim::OnebitLambOptions{}, "use OneBitAdam with thinwire.lean");
  instead(optim::ZeroOneAdamOptions{},
          "local steps keep whole states on every rank; use OneBitAdam with "
          "thinwire.lean");
  instead(lean::LeanOnebitAdamOptions{}, "it shards by itself");
}

TEST(LowBitWireConfig, RefusesWhatLeanCannotGoWith) {
  Config base;
  base.optimizer = lean::LeanOnebitAdamOptions{};
  base.precision.dtype = DType::kBFloat16;
  const std::vector<Refusal> refusals = {
      {[](Config& c) { c.precision.dtype = DType::kFloat16; }, "use bf16"},
      {[](Config& c) { c.precision.master_dtype = DType::kBFloat16; },
       "precision.master_dtype must be float32"},
      {[](Config& c) { c.zero.wire.bits_up = 4; },
       "zero.wire must be left as it is with lean_onebit_adam"}};
  for (const Refusal& refusal : refusals) expect_refused(base, refusal, 2);
  base.precision.dtype = DType::kFloat32;
  EXPECT_NO_THROW(base.validate(1));
  base.comm.hierarchy = Hierarchy::kByHost;
  EXPECT_NO_THROW(base.validate(4));
}

TEST(LowBitWireConfig, RefusesWhatTheExchangeUnderTheNextStepExcludes) {
  Config base{.optimizer = optim::OnebitAdamOptions{}};
  base.comm.compressed_under_next_step = true;
  EXPECT_NO_THROW(base.validate(2));
  const std::string refused = "(thinwire.compressed_under_next_step) must be ";
  const std::vector<Refusal> refusals = {
      {[](Config& c) { c.zero.stage = 1; }, refused + "false with ZeRO"},
      {[](Config& c) { c.optimizer = lean::LeanOnebitAdamOptions{}; },
       refused + "false unless the optimizer is onebit_adam"},
      {[](Config& c) { c.optimizer = optim::OnebitLambOptions{}; },
       refused + "false unless the optimizer is onebit_adam"},
      {[](Config& c) { c.optimizer = optim::ZeroOneAdamOptions{}; },
       refused + "false unless the optimizer is onebit_adam"},
      {[](Config& c) { c.semantics = Semantics::kDeepSpeed; },
       "semantics must be corrected with comm.compressed_under_next_step"},
      {[](Config& c) {
         auto& onebit = std::get<optim::OnebitAdamOptions>(c.optimizer);
         onebit.freeze.step = 10;
         c.outer.sync_every = 4;
       },
       refused + "false with an outer loop"}};
  for (const Refusal& refusal : refusals) expect_refused(base, refusal, 2);
}

TEST(LowBitWireConfig, RefusesHostsThatCannotBe) {
  const Config base{.optimizer = optim::OnebitAdamOptions{}};
  const auto by_host = [](int each) {
    return [each](Config& c) {
      c.comm.hierarchy = Hierarchy::kByHost;
      c.comm.ranks_per_host = each;
    };
  };
  const std::vector<Refusal> refusals = {
      {[](Config& c) { c.comm.ranks_per_host = 4; },
       "(thinwire.ranks_per_host) must be a divisor of the number of ranks, 6"},
      {[](Config& c) { c.comm.ranks_per_host = -1; },
       "comm.ranks_per_host must be >= 0, got -1"},
      {by_host(1), "at least 2"},
      {[&](Config& c) {
         by_host(2)(c);
         c.semantics = Semantics::kDeepSpeed;
       },
       "semantics must be corrected with hierarchy by_host"}};
  for (const Refusal& refusal : refusals) expect_refused(base, refusal, 6);
  Config config = base;
  for (const int each : {0, 2, 3}) {
    by_host(each)(config);
    EXPECT_NO_THROW(config.validate(6));
  }
  config.comm = {.hierarchy = Hierarchy::kFlat, .ranks_per_host = 4};
  EXPECT_NO_THROW(config.validate(6));  // looked at by nobody
}

TEST(LowBitWireConfig, DeepSpeedHasNeitherLaggedClippingNorHold) {
  const Config deepspeed{.optimizer = optim::OnebitAdamOptions{},
                         .semantics = Semantics::kDeepSpeed};
  for (const Refusal& refusal : std::vector<Refusal>{
           {[](Config& c) { c.lagged_clipping = true; },
            "semantics must be corrected with lagged_clipping"},
           {[](Config& c) { c.fallback = Fallback::kHold; },
            "semantics must be corrected with fallback hold"}})
    expect_refused(deepspeed, refusal, 2);
}

}  // namespace
}  // namespace thinwire::config::low_bit_wire_test
