// SPDX-License-Identifier: Apache-2.0
// The sections fp16, bf16 and data_types; item 47 of docs/conformance.json.
// DeepSpeed's keys whose meaning here depends on other keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "config/text.h"
#include "support/errors.h"
#include "thinwire/config/config.h"

namespace thinwire::config::precision_test {
namespace {

using test::expect_rejected;
using test::read;

std::string fp16(std::string_view key, std::string_view value,
                 std::string_view scale = "0") {
  return R"({"fp16": {"enabled": true, "loss_scale": )" + std::string(scale) +
         ", \"" + std::string(key) + "\": " + std::string(value) + "}}";
}

TEST(ConfigFile, Item47DynamicScalingRefusesNumbersThatMakeNoSense) {
  for (const char* key : {"loss_scale_window", "min_loss_scale", "hysteresis"})
    for (const char* value : {"0", "-1", "true", "\"2\"", "[2]"})
      expect_rejected(fp16(key, value), {"fp16.", key, value});
  expect_rejected(fp16("loss_scale_window", "1.5"),
                  {"fp16.loss_scale_window must be an integer", "1.5"});
  expect_rejected(fp16("min_loss_scale", "1e999"), {"not JSON", "1e999"});
  expect_rejected(fp16("min_loss_scale", "Infinity"), {"not JSON"});
  expect_rejected(fp16("hysteresis", "NaN"), {"not JSON"});
  for (const char* value : {"-1", "true", "\"0\"", "1e400"})
    expect_rejected(R"({"fp16": {"enabled": true, "loss_scale": )" +
                        std::string(value) + "}}",
                    {});
}

TEST(ConfigFile, Item47StaticScalingLeavesThemUnused) {
  for (const char* key : {"loss_scale_window", "min_loss_scale", "hysteresis"})
    for (const char* value : {"0", "-1", "true"}) {
      const Config config = read(fp16(key, value, "128"));
      EXPECT_FALSE(config.precision.loss_scale.dynamic);
      EXPECT_EQ(config.precision.loss_scale.initial_scale, 128);
      config.validate(2);
    }
}

TEST(ConfigFile, ReadsPrecision) {
  const Config half = read(R"({"fp16": {"enabled": true,
      "initial_scale_power": 12, "loss_scale_window": 200, "hysteresis": 3,
      "consecutive_hysteresis": true, "min_loss_scale": 2},
      "thinwire": {"max_loss_scale": "unlimited", "at_minimum": "hold"},
      "data_types": {"grad_accum_dtype": "fp16", "param_dtype": "fp16"},
      "communication_data_type": "bf16"})");
  half.validate(1);
  EXPECT_EQ(half.precision.dtype, DType::kFloat16);
  const precision::LossScalerOptions expected{
      .initial_scale = 4096,
      .window = 200,
      .hysteresis = 3,
      .consecutive_hysteresis = true,
      .min_scale = 2,
      .max_scale = std::numeric_limits<double>::infinity(),
      .at_minimum = precision::AtMinimum::kHold};
  EXPECT_EQ(half.precision.loss_scale, expected);
  EXPECT_EQ(half.accumulation_dtype, DType::kFloat16);
  EXPECT_EQ(half.communication_dtype, DType::kBFloat16);

  const Config brain =
      read(R"({"bfloat16": {"enabled": true, "check_grad_overflow": false}})");
  brain.validate(1);
  EXPECT_EQ(brain.precision.dtype, DType::kBFloat16);
  EXPECT_FALSE(brain.precision.check_grad_overflow);
  EXPECT_EQ(brain.accumulation_dtype, DType::kFloat32);
}

TEST(ConfigFile, UnderstandsTheLossScaleAsDeepSpeedWhereAskedTo) {
  const Config config = read(R"({"fp16": {"enabled": true, "hysteresis": 0},
                                 "thinwire": {"semantics": "deepspeed"}})");
  EXPECT_EQ(config.precision.loss_scale.hysteresis, 0);
  EXPECT_NO_THROW(config.validate(1));
}

TEST(ConfigFile, RefusesPrecisionsThatExcludeOneAnother) {
  expect_rejected(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})",
                  {"bf16.enabled", "fp16.enabled"});
  expect_rejected(R"({"bf16": {}, "bfloat16": {}})", {"two names"});
  expect_rejected(R"({"data_types": {"param_dtype": "bf16"}})",
                  {"data_types.param_dtype", "bf16"});
  expect_rejected(R"({"data_types": {"grad_accum_dtype": "fp16"}})",
                  {"accumulation_dtype", "float16"});
  expect_rejected(
      R"({"fp16": {"enabled": true}, "thinwire": {"check_grad_overflow": false}})",
      {"check_grad_overflow", "true with float16"});
  const Config low = read(R"({"bf16": {"enabled": true,
      "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true}})");
  EXPECT_EQ(low.precision.state_dtype, DType::kBFloat16);
  low.validate(1);
  expect_rejected(
      R"({"bf16": {"enabled": true, "bf16_optimizer_states": true}})",
      {"state_dtype", "master_dtype"});
  const Config lamb = read(R"({"optimizer": {"type": "Lamb"}, "bf16": {
      "enabled": true, "bf16_master_weights_and_grads": true}})");
  thinwire::test::expect_invalid(
      {"master_dtype", "float32 with this optimizer"},
      [&] { lamb.validate(1); });
}

// ---- what depends on other keys

TEST(ConfigFile, Item9OverlapCommSetsTheOverlapOfZero) {
  const auto overlap = [](const std::string& zero, const std::string& own) {
    return read(R"({"zero_optimization": {)" + zero + R"(}, "thinwire": {)" +
                own + "}}")
        .comm.overlap;
  };
  EXPECT_FALSE(overlap(R"("stage": 2, "overlap_comm": false)", ""));
  EXPECT_TRUE(overlap(R"("stage": 1, "overlap_comm": true)", ""));
  EXPECT_TRUE(overlap(R"("stage": 1)", ""));
  EXPECT_TRUE(overlap(R"("overlap_comm": false)", ""));
  EXPECT_FALSE(overlap(R"("stage": 1)", R"("overlap": false)"));
  expect_rejected(R"({"zero_optimization": {"stage": 1, "overlap_comm": true},
                      "thinwire": {"overlap": false}})",
                  {"zero_optimization.overlap_comm", "thinwire.overlap"});
  expect_rejected(R"({"zero_optimization": {"stage": 1, "overlap_comm": 1}})",
                  {"zero_optimization.overlap_comm", "true or false", "got 1"});
}

TEST(ConfigFile, Item9DivisionsBeforeTheSumAreDeepSpeeds) {
  const auto why = [](const std::string& rest) {
    std::vector<KeyNote> notes;
    const Config config = Config::from_json(
        R"({"prescale_gradients": false, "gradient_predivide_factor": 4, )" +
            rest + "}",
        &notes);
    EXPECT_EQ(config.gradient_predivide_factor, 4);
    EXPECT_EQ(notes[0].note, notes[1].note);
    return notes[1].note;
  };
  const std::string reference = R"("thinwire": {"semantics": "deepspeed"})";
  EXPECT_NE(why(R"("fp16": {"enabled": true})").find("fp32"),
            std::string::npos);
  EXPECT_NE(why(reference).find("fp32"), std::string::npos);
  EXPECT_EQ(why(reference + R"(, "fp16": {"enabled": true})"), "");
  EXPECT_NE(why(reference + R"(, "zero_optimization": {"stage": 1})")
                .find("reduce_scatter"),
            std::string::npos);
  EXPECT_EQ(why(reference + R"(, "zero_optimization": {"stage": 1,
                                 "reduce_scatter": false})"),
            "");
  for (const char* value : {"0", "-1", "true"})
    expect_rejected(
        R"({"gradient_predivide_factor": )" + std::string(value) + "}",
        {"gradient_predivide_factor", "> 0", value});
}

TEST(ConfigFile, NotesAnUnusedTypeOfCommunicationAndOptionsOfTheReference) {
  const auto ignored = [](const std::string& key, const std::string& rest) {
    std::vector<KeyNote> notes;
    static_cast<void>(Config::from_json("{" + rest + "}", &notes));
    const auto found = std::ranges::find(notes, key, &KeyNote::path);
    return found->kind == KeyNote::Kind::kIgnored;
  };
  const std::string reference = R"(, "thinwire": {"semantics": "deepspeed"})";
  const auto type = [&](const std::string& rest) {
    return ignored("communication_data_type",
                   R"("communication_data_type": "fp32", )" + rest);
  };
  const std::string fp16 = R"("fp16": {"enabled": true})";
  const std::string several = fp16 + R"(, "gradient_accumulation_steps": 2)";
  const std::string batches =
      fp16 + R"(, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2)";
  const std::string stage_2 = R"(, "zero_optimization": {"stage": 2})";
  EXPECT_TRUE(type(fp16));
  EXPECT_TRUE(type(fp16 + R"(, "zero_optimization": {"stage": 1})"));
  EXPECT_TRUE(type(several + stage_2));
  EXPECT_TRUE(
      type(several + R"(, "data_types": {"grad_accum_dtype": "fp16"})"));
  EXPECT_FALSE(type(several));
  EXPECT_FALSE(type(batches));
  EXPECT_FALSE(type(fp16 + R"(, "managed_gradient_accumulation": false)"));
  EXPECT_FALSE(type(R"("fp16": {"enabled": false})" + stage_2));
  EXPECT_FALSE(type(fp16 + stage_2 + reference));

  for (const std::string name : {"reduce_scatter", "round_robin_gradients"}) {
    const std::string zero =
        R"("zero_optimization": {"stage": 2, ")" + name + R"(": true})";
    EXPECT_TRUE(ignored("zero_optimization." + name, zero));
    EXPECT_FALSE(ignored("zero_optimization." + name, zero + reference));
  }
}

TEST(ConfigFile, Item8TheBackendIsOneOfFour) {
  const auto with = [](const std::string& backend) {
    return R"({"optimizer": {"type": "OneBitAdam", "params": {)" + backend +
           "}}}";
  };
  EXPECT_EQ(read(with("")).comm.backend, CommBackend::kUnset);
  EXPECT_EQ(read(with(R"("comm_backend_name": "nccl")")).comm.backend,
            CommBackend::kNccl);
  EXPECT_EQ(read(with(R"("comm_backend_name": "mpi")")).comm.backend,
            CommBackend::kMpi);
  expect_rejected(
      with(R"("comm_backend_name": "foo")"),
      {"optimizer.params.comm_backend_name", "nccl, hccl, mpi, gloo", "foo"});
}

TEST(ConfigFile, Item15AMaximumNormOfZeroIsWhatHoldsAnyway) {
  read(R"({"optimizer": {"type": "OneBitLamb", "params":
           {"max_grad_norm": 0.0}}})")
      .validate(2);
}

}  // namespace
}  // namespace thinwire::config::precision_test
