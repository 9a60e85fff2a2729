// SPDX-License-Identifier: Apache-2.0
// Keys of a file and their effects; items 40 and 59 of
// docs/conformance.json.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "config/text.h"
#include "support/errors.h"
#include "thinwire/config/config.h"
#include "thinwire/core/log.h"

namespace thinwire::config::read_test {
namespace {

using test::expect_rejected;
using test::read;

template <class Options>
Options optimizer_of(std::string_view text) {
  return std::get<Options>(read(text).optimizer);
}

TEST(ConfigFile, Item40ClippingIsOffUnlessSet) {
  for (const char* semantics : {"corrected", "deepspeed"}) {
    const std::string own =
        R"("thinwire": {"semantics": ")" + std::string(semantics) + "\"}";
    EXPECT_EQ(read("{" + own + "}").gradient_clipping, 0);
    EXPECT_EQ(
        read("{" + own + R"(, "gradient_clipping": "auto"})").gradient_clipping,
        0);
    EXPECT_EQ(
        read("{" + own + R"(, "gradient_clipping": 1.0})").gradient_clipping,
        1);
  }
  EXPECT_EQ(read(R"({"gradient_clipping": 0})").gradient_clipping, 0);
  EXPECT_EQ(read(R"({"gradient_clipping": 0.5})").gradient_clipping, 0.5);
  EXPECT_EQ(Config{}.gradient_clipping, 0);
}

TEST(ConfigFile, Item40TellsOfDeepSpeedsNewerDefaultOnceAFile) {
  std::vector<KeyNote> notes;
  static_cast<void>(Config::from_json("{}", &notes));
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0].kind, KeyNote::Kind::kAbsent);
  EXPECT_EQ(describe(notes[0]),
            "gradient_clipping: absent: it is 0, and gradients are not "
            "clipped; DeepSpeed's default is 1.0 since version 0.19.3");
  for (const char* set : {"0", "1.0"}) {
    notes.clear();
    static_cast<void>(Config::from_json(
        R"({"gradient_clipping": )" + std::string(set) + "}", &notes));
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_EQ(notes[0].kind, KeyNote::Kind::kSupported);
  }
}

TEST(ConfigFile, Item59LambTakesAStaticScale) {
  for (const char* type : {"Lamb", "OneBitLamb"}) {
    const Config config =
        read(R"({"optimizer": {"type": ")" + std::string(type) +
             R"("}, "fp16": {"enabled": true, "loss_scale": 64}})");
    config.validate(2);
    EXPECT_EQ(config.precision.loss_scale.initial_scale, 64);
  }
}

TEST(ConfigFile, Item59LowBitWithZeroAndPipelinesAreRejected) {
  for (const char* type : {"OneBitAdam", "OneBitLamb", "ZeroOneAdam"}) {
    const std::string optimizer =
        R"("optimizer": {"type": ")" + std::string(type) + "\"}";
    const Config sharded =
        read("{" + optimizer + R"(, "zero_optimization": {"stage": 2}})");
    thinwire::test::expect_invalid(
        {"zero_optimization.stage", "must be 0 with", "thinwire.lean"},
        [&] { sharded.validate(2); });
    read("{" + optimizer + R"(, "bf16": {"enabled": true}})").validate(2);
    expect_rejected("{" + optimizer + R"(, "pipeline": {"stages": 2}})",
                    {"pipeline", "rejected", "no pipeline parallelism"});
  }
}

TEST(ConfigFile, ReadsZeroAndLeavesItToValidate) {
  const Config config = read(R"({"zero_optimization": {
      "stage": 1, "reduce_bucket_size": 5e7, "overlap_comm": true,
      "allgather_bucket_size": 2e8, "stage3_max_live_parameters": 1e9,
      "offload_optimizer": {"device": "cpu", "pin_memory": false}}})");
  EXPECT_EQ(config.zero.stage, 1);
  EXPECT_EQ(config.zero.reduce_bucket_size, 50'000'000);
  EXPECT_EQ(config.zero.allgather_bucket_size, 200'000'000);
  EXPECT_TRUE(config.comm.overlap);
  EXPECT_EQ(config.zero.offload_optimizer, OffloadDevice::kCpu);
  config.validate(1);
  EXPECT_EQ(read(R"({"zero_optimization": true})").zero.stage, 1);
  EXPECT_EQ(read(R"({"zero_optimization": false})").zero.stage, 0);
  EXPECT_EQ(read(R"({"zero_optimization": {"cpu_offload": true}})")
                .zero.offload_optimizer,
            OffloadDevice::kCpu);
  expect_rejected(
      R"({"zero_optimization": {"stage": 3}})",
      {"zero_optimization.stage", "[0, 2]", "no ZeRO stage 3", "got 3"});
}

TEST(ConfigFile, NotesThatOffloadChangesNothing) {
  const auto kind = [](const char* section, const char* path) {
    std::vector<KeyNote> notes;
    static_cast<void>(Config::from_json(
        fmt::format(R"({{"zero_optimization": {{"stage": 2, {}}}}})", section),
        &notes));
    const auto of = std::ranges::find(notes, path, &KeyNote::path);
    return of == notes.end() ? KeyNote::Kind::kAbsent : of->kind;
  };
  constexpr auto kDevice = "zero_optimization.offload_optimizer.device";
  EXPECT_EQ(kind(R"("offload_optimizer": {"device": "cpu"})", kDevice),
            KeyNote::Kind::kIgnored);
  EXPECT_EQ(kind(R"("offload_optimizer": {"device": "none"})", kDevice),
            KeyNote::Kind::kSupported);
  EXPECT_EQ(kind(R"("cpu_offload": true)", "zero_optimization.cpu_offload"),
            KeyNote::Kind::kIgnored);
}

TEST(ConfigFile, CallsAdamWhatDeepSpeedDoes) {
  const auto decoupled = [](std::string_view text) {
    return optimizer_of<optim::AdamOptions>(text).decoupled_decay;
  };
  EXPECT_TRUE(decoupled("{}"));
  EXPECT_TRUE(decoupled(R"({"optimizer": {"type": "Adam"}})"));
  EXPECT_TRUE(decoupled(R"({"optimizer": {"type": "adamw"}})"));
  EXPECT_FALSE(decoupled(
      R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})"));
  expect_rejected(
      R"({"optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}}})",
      {"optimizer.params.adam_w_mode", "AdamW", "false"});
}

TEST(ConfigFile, ReadsEverySettingOfAnOptimizer) {
  const auto options = optimizer_of<optim::OnebitLambOptions>(R"({
      "optimizer": {"type": "OneBitLamb", "params": {
        "lr": 0.01, "betas": [0.8, 0.99], "eps": 1e-6, "weight_decay": 0.1,
        "bias_correction": false, "eps_inside_sqrt": true, "max_coeff": 5,
        "min_coeff": 0.1, "coeff_beta": 0.7, "factor_max": 3,
        "factor_min": 0.25, "factor_threshold": 0.2, "amsgrad": false}},
      "thinwire": {"denom_floor": 0.1, "residual_dtype": "bf16",
        "auto_freeze": true, "lr_warmup_steps": 5, "total_steps": 50,
        "min_freeze_step": 6, "max_freeze_step": 30, "freeze_ratio": 0.8,
        "warmup_bits": 4}})");
  const optim::OnebitLambOptions expected{
      .learning_rate = 0.01,
      .beta1 = 0.8,
      .beta2 = 0.99,
      .epsilon = 1e-6,
      .weight_decay = 0.1,
      .bias_correction = false,
      .epsilon_inside_sqrt = true,
      .max_coeff = 5,
      .min_coeff = 0.1,
      .coeff_beta = 0.7,
      .factor_max = 3,
      .factor_min = 0.25,
      .factor_threshold = 0.2,
      .freeze = {.step = optim::kAutoFreeze,
                 .lr_warmup_steps = 5,
                 .total_steps = 50,
                 .min_step = 6,
                 .max_step = 30,
                 .ratio = 0.8,
                 .warmup_bits = 4},
      .compression = {.denom_floor = 0.1, .residual_dtype = DType::kBFloat16}};
  EXPECT_EQ(options, expected);
}

TEST(ConfigFile, HandsTheOptimizerWhatTheConfigSays) {
  const Config config = read(R"({
      "optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 0}},
      "gradient_clipping": 2,
      "thinwire": {"semantics": "deepspeed", "bucket_elements": 4096,
        "threads": 3, "verify_every": 7}})");
  config.validate(2);
  const auto options =
      std::get<optim::OnebitAdamOptions>(config.optimizer_options());
  EXPECT_EQ(config.semantics, Semantics::kDeepSpeed);
  const optim::ExchangeOptions exchange{.max_grad_norm = 2,
                                        .bucket_elements = 4096,
                                        .verify_every = 7,
                                        .num_threads = 3};
  EXPECT_EQ(options.compression.exchange, exchange);
  EXPECT_EQ(config.exchange_options(), exchange);
}

// DeepSpeedSchedulers.GiveTheSameRates reads DeepSpeed's.
TEST(ConfigFile, ReadsSchedulers) {
  const Config config = read(R"({"thinwire": {"schedule":
      {"decay": "inverse_sqrt", "warmup": "log", "warmup_steps": 9}}})");
  EXPECT_EQ(std::get<WarmupAndDecay>(config.schedule.shape),
            (WarmupAndDecay{.decay = Decay::kInverseSqrt,
                            .warmup = Warmup::kLog,
                            .warmup_steps = 9}));
  expect_rejected(R"({"scheduler": {"type": "OneCycle", "params":
      {"cycle_min_lr": 0.1, "cycle_max_lr": 1}}})",
                  {"scheduler.params.cycle_momentum", "betas", "nothing"});
  expect_rejected(R"({"scheduler": {"type": "OneCycle", "params":
      {"cycle_min_lr": 0.1, "cycle_momentum": false}}})",
                  {"scheduler.params.cycle_max_lr", "given"});
  expect_rejected(R"({"scheduler": {"type": "WarmupDecayLR"}})",
                  {"total_num_steps", "given"});
  expect_rejected(R"({"scheduler": {"params": {}}})",
                  {"scheduler.type", "nothing"});
  expect_rejected(R"({"scheduler": {"type": "WarmupLR"},
                     "thinwire": {"schedule": {"decay": "none"}}})",
                  {"thinwire.schedule", "scheduler"});
}

TEST(ConfigFile, HandsBackObjectsThatAProgramTakes) {
  const std::string text =
      R"({"a program": {"steps": 1e2, "x": null, "y": "auto", "z": [1, {}],
                        "seed": 18446744073709551615, "fp16": {"no": "key"}},
          "gradient_clipping": 3})";
  std::vector<KeyNote> notes;
  const Config config =
      Config::from_json(text, &notes, {}, {"another", "a program"});
  ASSERT_EQ(config.other_objects.size(), 1u);
  EXPECT_EQ(config.other_objects.at("a program"),
            "{\n  \"steps\": 100.0,\n  \"x\": null,\n  \"y\": \"auto\",\n"
            "  \"z\": [\n    1,\n    {}\n  ],\n"
            "  \"seed\": 18446744073709551615,\n"
            "  \"fp16\": {\n    \"no\": \"key\"\n  }\n}");
  EXPECT_EQ(config.gradient_clipping, 3);
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_EQ(notes[0].path, "a program");
  EXPECT_EQ(notes[0].kind, KeyNote::Kind::kSupported);
}

TEST(ConfigFile, RejectsObjectsThatNobodyTakes) {
  expect_rejected(R"({"program": {}})", {"unknown key 'program'"});
  const auto take = [](std::string_view text, const char* name,
                       std::initializer_list<std::string_view> parts) {
    SCOPED_TRACE(text);
    thinwire::test::expect_invalid(parts, [&] {
      static_cast<void>(Config::from_json(text, nullptr, {}, {name}));
    });
  };
  take(R"({"porgram": {}})", "program",
       {"unknown key 'porgram'", "did you mean 'program'"});
  take(R"({"fp16": {"program": {}}})", "program", {"fp16.program"});
  take(R"({"program": [1]})", "program", {"program", "an object", "[1]"});
  take("{}", "zero_optimization", {"taken", "zero_optimization"});
  take("{}", "scheduler", {"taken", "scheduler"});
  EXPECT_EQ(Config::from_json(R"({"program": null})", nullptr, {}, {"program"}),
            read("{}"));
}

TEST(Config, RejectsObjectsWithTheNamesOfKeys) {
  Config config;
  config.other_objects["optimizer"] = "{}";
  thinwire::test::expect_invalid({"other_objects", "'optimizer'"},
                                 [&] { config.validate(1); });
}

TEST(ConfigFile, LogsIgnoredKeysWhereNobodyTakesNotes) {
  const char* text = R"({"gradient_clipping": 2, "dump_state": true,
                         "fp16": {"enabled": false, "hysteresis": 3}})";
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, std::string_view line) {
    lines.emplace_back(line);
    EXPECT_EQ(level, LogLevel::kInfo);
  });
  std::vector<KeyNote> notes;
  static_cast<void>(Config::from_json(text, &notes));
  EXPECT_TRUE(lines.empty());
  static_cast<void>(read(text));
  set_log_sink({});
  EXPECT_EQ(lines,
            (std::vector<std::string>{
                "configuration: dump_state: ignored (no effect): a report of "
                "DeepSpeed's; not written",
                "configuration: fp16.hysteresis: ignored (no effect): the "
                "section is not enabled"}));
  ASSERT_EQ(notes.size(), 4u);
  EXPECT_EQ(describe(notes[0]), "gradient_clipping: supported");
}

TEST(ConfigFile, ChecksWhatItIgnores) {
  const auto zero = [](const std::string& member) {
    return R"({"zero_optimization": {"stage": 1, )" + member + "}}";
  };
  for (const char* key : {"contiguous_gradients", "load_from_fp32_weights",
                          "elastic_checkpoint"}) {
    EXPECT_EQ(read(zero("\"" + std::string(key) + "\": true")),
              read(R"({"zero_optimization": {"stage": 1}})"));
    expect_rejected(zero("\"" + std::string(key) + "\": 1"),
                    {"zero_optimization.", key, "true or false", "got 1"});
  }
  expect_rejected(zero(R"("offload_optimizer": {"pin_memory": "yes"})"),
                  {"zero_optimization.offload_optimizer.pin_memory",
                   "true or false", "\"yes\""});
}

TEST(ConfigFile, SaysWhichFileItIs) {
  thinwire::test::expect_invalid({"cannot read", "/does/not/exist.json"}, [] {
    static_cast<void>(Config::from_file("/does/not/exist.json"));
  });
}

TEST(ConfigFile, RejectsWhatHasNoEnd) {
  thinwire::test::expect_invalid(
      {"/dev/zero", "at most 1048576 bytes", "got more"},
      [] { static_cast<void>(Config::from_file("/dev/zero")); });
}

TEST(ConfigFile, RejectsANulByte) {
  expect_rejected(std::string_view("{}\0", 3),
                  {"not JSON", "byte 3 of 3", "NUL"});
  expect_rejected(std::string_view("{}\0{\"stage\": 9}", 15), {"byte 3 of 15"});
  expect_rejected(std::string_view("\0{}", 3), {"byte 1 of 3"});
}

TEST(Config, IsValidByDefault) { Config{}.validate(1); }

TEST(Config, RejectsSettingsThatItHasFieldsOfItsOwnFor) {
  const auto refuse = [](const Config& config,
                         std::initializer_list<std::string_view> parts) {
    thinwire::test::expect_invalid(parts, [&] { config.validate(1); });
  };
  refuse({.optimizer =
              optim::ZeroOneAdamOptions{
                  .compression = {.exchange = {.max_grad_norm = 1}}}},
         {"optimizer.exchange"});
  refuse({.gradient_clipping = -1}, {"gradient_clipping", ">= 0", "-1"});
  refuse({.communication_dtype = DType::kInt32},
         {"communication_dtype", "int32"});
  refuse({.precision = {.dtype = DType::kFloat64}},
         {"precision.dtype", "float64"});
}

TEST(Config, DoesNotWriteGroups) {
  const Config config{.optimizer = optim::AdamOptions{.groups = {{}, {}}}};
  config.validate(1);
  thinwire::test::expect_invalid({"optimizer.groups"},
                                 [&] { static_cast<void>(config.to_json()); });
}

}  // namespace
}  // namespace thinwire::config::read_test
