// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/options/training_config.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

#include "examples/train_gpt/options/parsing.h"
#include "examples/train_gpt/run_folder.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::train_gpt::training_config_test {
namespace {

using config::Config;
using Counts = std::pair<std::int64_t, std::int64_t>;

constexpr const char* kOptimizers[] = {"adam",          "onebit_adam",
                                       "lamb",          "onebit_lamb",
                                       "zero_one_adam", "lean_onebit_adam"};

Config config_of(const std::string& flags, Start start = Start::kAnew) {
  return training_config(parse(flags), start);
}

template <class To>
To optimizer_of(const Config& config) {
  return std::get<To>(config.optimizer);
}

TEST(TrainingConfig, OfTheFlagsAloneIsValidForEveryOptimizer) {
  for (const char* name : kOptimizers) {
    const Config config = config_of(
        std::string("--set gradient_accumulation_steps=3 --optimizer ") + name);
    config.validate(4);
    EXPECT_EQ(config::name_of(config.optimizer), name);
    EXPECT_EQ(config.batch(4).accumulation_steps, 3);
    EXPECT_EQ(config.batch(4).micro, 8);
    EXPECT_EQ(config.gradient_clipping, 1);
    EXPECT_EQ(config.semantics, config::Semantics::kCorrected);
    const bool is_lamb = std::string_view(name).ends_with("lamb");
    std::visit(
        [&](const auto& optimizer) {
          EXPECT_EQ(optimizer.learning_rate, is_lamb ? 1e-2 : 1.5e-3);
        },
        config.optimizer);
    // The rate peaks when the warm-up ends and falls to a tenth.
    EXPECT_NEAR(config.schedule.rate(1, 49), 1, 1e-12);
    EXPECT_NEAR(config.schedule.rate(1, 499), 0.1, 1e-12);
  }
  EXPECT_EQ(config::name_of(config_of("").optimizer), "onebit_adam");
}

TEST(TrainingConfig, SettingsWinOverDefaults) {
  const Config config = config_of(
      "--set optimizer.params.lr=2e-3 --set optimizer.params.weight_decay=0.1 "
      "--set gradient_clipping=0 --set train_micro_batch_size_per_gpu=2 "
      "--set semantics=deepspeed");
  const auto adam = optimizer_of<optim::OnebitAdamOptions>(config);
  EXPECT_EQ(adam.learning_rate, 2e-3);
  EXPECT_EQ(adam.weight_decay, 0.1);
  EXPECT_EQ(config.gradient_clipping, 0);
  EXPECT_EQ(config.batch(2).micro, 2);
  EXPECT_EQ(config.semantics, config::Semantics::kDeepSpeed);
}

TEST(TrainingConfig, PhasesFollowFromTheSteps) {
  const auto freeze_step = [](const char* flags) {
    return optimizer_of<optim::OnebitAdamOptions>(config_of(flags)).freeze.step;
  };
  EXPECT_EQ(freeze_step(""), 100);
  EXPECT_EQ(freeze_step("--steps 20000"), 4000);
  EXPECT_EQ(freeze_step("--steps 200"), 50) << "the warm-up ends then";
  EXPECT_EQ(freeze_step("--steps 1 --set train_gpt.warmup_steps=0"), 1);
  EXPECT_EQ(freeze_step("--set optimizer.params.freeze_step=30"), 30);
  EXPECT_EQ(freeze_step("--set auto_freeze=true"), optim::kAutoFreeze);
  const auto stages = [](const std::string& flags) {
    const auto options = optimizer_of<optim::ZeroOneAdamOptions>(
        config_of("--optimizer zero_one_adam " + flags));
    return Counts(options.var_freeze_step.value_or(0),
                  options.local_step_clipper.value_or(0));
  };
  EXPECT_EQ(stages(""), Counts(250, 4));
  EXPECT_EQ(stages("--steps 20000"), Counts(10'000, 16));
  EXPECT_EQ(stages("--set optimizer.params.var_freeze_step=40 --set "
                   "optimizer.params.local_step_clipper=8"),
            Counts(40, 8));
}

TEST(TrainingConfig, OfAResumedRunNamesNoStageThatNobodyNames) {
  const auto freeze_step = [](const char* flags) {
    return optimizer_of<optim::OnebitAdamOptions>(
               config_of(flags, Start::kResumed))
        .freeze.step;
  };
  EXPECT_EQ(freeze_step(""), std::nullopt);
  EXPECT_EQ(freeze_step("--set auto_freeze=true"), optim::kAutoFreeze);
  EXPECT_EQ(freeze_step("--set optimizer.params.freeze_step=31"), 31);
  EXPECT_EQ(optimizer_of<optim::ZeroOneAdamOptions>(
                config_of("--optimizer zero_one_adam", Start::kResumed))
                .var_freeze_step,
            std::nullopt);
}

TEST_F(ConfigFile, OfDeepSpeedDecidesWhatNothingElseGives) {
  write(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4,
            "optimizer": {"type": "OneBitAdam",
                          "params": {"lr": 4e-4, "freeze_step": 23,
                                     "weight_decay": 0.01}},
            "scheduler": {"type": "WarmupLR"}, "fp16": {"enabled": true}})");
  const Options options = parse(config);
  EXPECT_GE(options.file_keys.size(), 7u);
  Config read = training_config(options);
  read.validate(2);
  auto adam = optimizer_of<optim::OnebitAdamOptions>(read);
  EXPECT_EQ(adam.learning_rate, 4e-4);
  EXPECT_EQ(adam.freeze.step, 23);
  EXPECT_EQ(adam.weight_decay, 0.01);
  EXPECT_EQ(read.gradient_clipping, 0) << "the file is silent";
  EXPECT_EQ(read.precision.dtype, DType::kFloat16);
  EXPECT_EQ(read.batch(2).accumulation_steps, 8);
  EXPECT_TRUE(std::holds_alternative<config::WarmupLr>(read.schedule.shape));
  const Settings settings = settings_of(options, read);
  for (const auto& [name, value] : settings)
    EXPECT_NE(name, "warmup_steps") << "the file's";

  read = config_of(
      config +
      "--set optimizer.params.lr=0.1 --set train_gpt.warmup_steps=7 "
      "--set optimizer.params.freeze_step=9 --set gradient_clipping=0.5");
  read.validate(2);
  EXPECT_EQ(read.gradient_clipping, 0.5);
  adam = optimizer_of<optim::OnebitAdamOptions>(read);
  EXPECT_EQ(adam.learning_rate, 0.1);
  EXPECT_EQ(adam.freeze.step, 9);
  EXPECT_EQ(adam.weight_decay, 0.01);
  EXPECT_TRUE(
      std::holds_alternative<config::WarmupAndDecay>(read.schedule.shape));
}

TEST_F(ConfigFile, KeepsTheSizeThatNoSettingGives) {
  write(R"({"train_micro_batch_size_per_gpu": 6,
            "gradient_accumulation_steps": 3,
            "optimizer": {"type": "Adam"}})");
  const auto sizes = [&](const char* flags) {
    const auto batch = config_of(config + flags).batch(2);
    return Counts(batch.micro, batch.accumulation_steps);
  };
  EXPECT_EQ(sizes("--set train_micro_batch_size_per_gpu=2"), Counts(2, 3));
  EXPECT_EQ(sizes("--set gradient_accumulation_steps=4"), Counts(6, 4));
}

TEST_F(ConfigFile, AutoStandsForWhatTheRunSays) {
  write(R"({"optimizer": {"type": "Adam", "params": {"lr": "auto"}},
            "scheduler": {"type": "WarmupDecayLR", "params":
                {"total_num_steps": "auto", "warmup_num_steps": "auto",
                 "warmup_max_lr": "auto"}},
            "train_gpt": {"steps": 300}})");
  const Config read = config_of(
      config +
      "--set train_gpt.warmup_steps=20 --set optimizer.params.lr=0.25");
  EXPECT_EQ(std::get<config::WarmupDecayLr>(read.schedule.shape),
            (config::WarmupDecayLr{.total_num_steps = 300,
                                   .warmup_max_lr = 0.25,
                                   .warmup_num_steps = 20}));
  EXPECT_EQ(optimizer_of<optim::AdamOptions>(read).learning_rate, 0.25);
  expect_usage_error(config,
                     {path, "scheduler.params.warmup_num_steps", "auto"});
}

TEST_F(ConfigFile, AnotherOptimizerTakesNothingOfTheFiles) {
  write(R"({"optimizer": {"type": "OneBitAdam", "params": {"lr": 4e-4}}})");
  const Config read = config_of(config + "--optimizer lamb");
  EXPECT_EQ(optimizer_of<optim::LambOptions>(read).learning_rate, 1e-2);
}

// ---- --set

TEST(Settings, AreKeysOfAFile) {
  const Config config = config_of(
      "--optimizer adam --set zero_optimization.stage=2 --set zero_bits_up=4 "
      "--set zero_bits_down=8 --set thinwire.hierarchy=flat "
      "--set telemetry.path=out/Steps.jsonl --set telemetry.every=10 "
      "--set overlap=false --set bf16.enabled=true --set zero_bits_up=8");
  EXPECT_EQ(config.zero.stage, 2);
  EXPECT_EQ(config.zero.wire.bits_up, 8) << "the later one wins";
  EXPECT_EQ(config.zero.wire.bits_down, 8);
  EXPECT_EQ(config.comm.hierarchy, config::Hierarchy::kFlat);
  EXPECT_EQ(config.telemetry.path, "out/Steps.jsonl");
  EXPECT_EQ(config.telemetry.every, 10);
  EXPECT_EQ(config.precision.dtype, DType::kBFloat16);
  EXPECT_FALSE(config.comm.overlap);
  EXPECT_NO_THROW(config.validate(2));
}

TEST(Settings, LeaveTheRestAsItIs) {
  for (const char* name : kOptimizers) {
    Options options{.optimizer = name, .steps = 321};
    Config expected = training_config(options);
    expected.comm.verify_every = 7;
    options.set = {"verify_every=7"};
    EXPECT_EQ(training_config(options), expected) << name;
  }
}

TEST(Settings, AndTheFlagOfTheSameAgree) {
  EXPECT_EQ(config_of("--set lean=true"),
            config_of("--optimizer lean_onebit_adam"));
}

TEST_F(ConfigFile, IsOverruledBySettings) {
  write(R"({"thinwire": {"hierarchy": "flat", "verify_every": 3}})");
  const Config read = config_of(config + "--set hierarchy=by_host");
  EXPECT_EQ(read.comm.hierarchy, config::Hierarchy::kByHost);
  EXPECT_EQ(read.comm.verify_every, 3);
}

// The config.json of a run gives the same run again, with its schedule.
TEST_F(ConfigFile, OfARunRepeatsIt) {
  for (const char* name : kOptimizers)
    for (const char* more :
         {"", " --set schedule.decay=linear", " --set schedule.total_steps=30",
          " --set schedule.warmup_steps=1"}) {
      SCOPED_TRACE(std::string(name) + more);
      const std::string flags =
          std::string("--optimizer ") + name +
          " --steps 321 --seed 4 --set train_gpt.warmup_steps=20 "
          "--set train_gpt.width=16 --set verify_every=7 "
          "--set optimizer.params.lr=0.25 --set checkpoint.keep_last=5" +
          more;
      const Options first = parse(flags);
      const Config expected = training_config(first);
      const Settings settings = settings_of(first, expected);
      write(config_text(settings, first.data, expected.to_json()));
      const Options again = parse_all(config).options;
      EXPECT_EQ(training_config(again).schedule, expected.schedule);
      if (*more == '\0') {
        EXPECT_EQ(training_config(again), expected);
      }
      EXPECT_EQ(settings_of(again, expected), settings);
      EXPECT_EQ(again.data, first.data);
    }
}

TEST(Settings, NameTheKeyThatIsWrong) {
  const auto refused = [](const std::string& setting,
                          std::initializer_list<std::string> parts) {
    expect_usage_error("--set " + setting, parts);
  };
  refused("zero_bits_up", {"--set must be KEY=VALUE", "'zero_bits_up'"});
  refused("=4", {"--set must be KEY=VALUE", "'=4'"});
  refused("verify_evry=4",
          {"--set", "thinwire.verify_evry", "'verify_every'?"});
  refused("verify_every=often", {"thinwire.verify_every", "\"often\""});
  refused("verify_every.x=4", {"--set", "verify_every.x"});
  refused("optimizer.params={}", {"optimizer.params", "key by key"});
  refused("auto_freeze=true --set optimizer.params.freeze_step=3",
          {"freeze_step must be left out", "got 3"});
  refused("optimizer.params.freeze_step=3 --set auto_freeze=true",
          {"freeze_step must be left out", "got 3"});
  refused("zero_bits_up=4",
          {"thinwire.zero_bits_up is of Adam, AdamW, Lamb, not of OneBitAdam"});
  refused("optimizer.params.var_freeze_step=4",
          {"optimizer.params.var_freeze_step is of ZeroOneAdam"});
}

TEST(Settings, OfARunDecideItsResult) {
  const Options options =
      parse("--set hierarchy=flat --set train_gpt.validate_every=5");
  const Settings expected = {{"optimizer", "onebit_adam"},
                             {"steps", "500"},
                             {"warmup_steps", "50"},
                             {"context", "64"},
                             {"layers", "4"},
                             {"width", "128"},
                             {"heads", "4"},
                             {"seed", "1"},
                             {"validate_every", "5"}};
  EXPECT_EQ(settings_of(options, training_config(options)), expected);
}

}  // namespace
}  // namespace thinwire::train_gpt::training_config_test
