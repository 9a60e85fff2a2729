// SPDX-License-Identifier: Apache-2.0
// The sections fp16, bf16 and data_types; item 47 of docs/conformance.md.
#include <gtest/gtest.h>

#include <limits>
#include <string>

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
  thinwire::test::expect_error(ErrorCode::kInvalidArgument,
                               {"master_dtype", "float32 with this optimizer"},
                               [&] { lamb.validate(1); });
}

}  // namespace
}  // namespace thinwire::config::precision_test
