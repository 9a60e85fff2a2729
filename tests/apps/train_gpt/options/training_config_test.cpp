// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/options/training_config.h"

#include <gtest/gtest.h>

#include "apps/train_gpt/options/config_file.h"
#include "apps/train_gpt/options/parsing.h"
#include "support/errors.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::train_gpt::training_config_test {
namespace {

TEST_F(ConfigFile, GivesWhatFlagsDoNot) {
  write(R"({"train_gpt": {"data": ["x", "y"], "steps": 30, "lr": 0.002,
            "warmup_steps": 5, "weight-decay": 0, "freeze_step": "auto",
            "var_freeze_step": 7, "local_steps": 2,
            "clip": 3, "quiet": true, "seed": 12}})");
  const Options options =
      parse_all({"--config", path.c_str(), "--seed", "3"}).options;
  EXPECT_EQ(options.data, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(options.steps, 30);
  EXPECT_EQ(options.lr, 0.002);
  EXPECT_EQ(options.warmup_steps, 5);
  EXPECT_EQ(options.freeze_step, optim::kAutoFreeze);
  EXPECT_EQ(options.var_freeze_step, 7);
  EXPECT_EQ(options.local_steps, 2);
  EXPECT_EQ(options.clip, 3);
  EXPECT_TRUE(options.quiet);
  EXPECT_EQ(options.seed, 3u);  // flags win
}

TEST_F(ConfigFile, OfDeepSpeedDecidesWhatNoFlagGives) {
  write(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4,
            "optimizer": {"type": "OneBitAdam",
                          "params": {"lr": 4e-4, "freeze_step": 23,
                                     "weight_decay": 0.01}},
            "scheduler": {"type": "WarmupLR"}, "fp16": {"enabled": true}})");
  Options options = parse({"--config", path.c_str()});
  EXPECT_EQ(options.optimizer, "onebit_adam");
  EXPECT_EQ(options.lr, 4e-4);
  EXPECT_EQ(options.freeze_step, 23);
  EXPECT_EQ(options.weight_decay, 0.01);
  EXPECT_EQ(options.clip, 0);  // as the file, which is silent
  EXPECT_EQ(options.precision, DType::kFloat16);
  EXPECT_TRUE(options.file_sizes);
  EXPECT_TRUE(options.file_schedules);
  EXPECT_GE(options.file_keys.size(), 7u);
  config::Config config = training_config(options);
  config.validate(2);
  EXPECT_EQ(config.batch(2).accumulation_steps, 8);
  EXPECT_TRUE(std::holds_alternative<config::WarmupLr>(config.schedule.shape));

  options = parse({"--config", path.c_str(), "--batch", "2", "--lr", "0.1",
                   "--precision", "bf16", "--warmup-steps", "7",
                   "--freeze-step", "9", "--clip", "0"});
  config = training_config(options);
  config.validate(2);
  EXPECT_EQ(config.batch(2).micro, 2);
  EXPECT_EQ(config.batch(2).accumulation_steps, 1);
  EXPECT_EQ(config.precision.dtype, DType::kBFloat16);
  EXPECT_EQ(config.gradient_clipping, 0);
  const auto& adam = std::get<optim::OnebitAdamOptions>(config.optimizer);
  EXPECT_EQ(adam.learning_rate, 0.1);
  EXPECT_EQ(adam.freeze.step, 9);
  EXPECT_EQ(adam.weight_decay, 0.01);
  EXPECT_TRUE(
      std::holds_alternative<config::WarmupAndDecay>(config.schedule.shape));
}

TEST(IdleFlags, AreThoseThatTheOptimizerDoesNotFollow) {
  const auto of = [](std::vector<const char*> arguments) {
    arguments.insert(arguments.end(),
                     {"--freeze-step", "3", "--local-steps", "2"});
    return parse(arguments).idle_flags;
  };
  using Flags = std::vector<std::string>;
  EXPECT_EQ(of({"--optimizer", "adam"}),
            (Flags{"--freeze-step", "--local-steps"}));
  EXPECT_EQ(of({"--optimizer", "onebit_adam"}), Flags{"--local-steps"});
  EXPECT_EQ(of({"--optimizer", "lean_onebit_adam"}), Flags{"--local-steps"});
  EXPECT_EQ(parse({"--optimizer", "adam"}).idle_flags, Flags{});
}

TEST_F(ConfigFile, KeepsTheSizeThatNoFlagGives) {
  write(R"({"train_micro_batch_size_per_gpu": 6,
            "gradient_accumulation_steps": 3,
            "optimizer": {"type": "Adam"}})");
  const auto sizes = [&](const std::vector<const char*>& flags) {
    std::vector<const char*> all{"--config", path.c_str()};
    all.insert(all.end(), flags.begin(), flags.end());
    return training_config(parse(all)).batch(2);
  };
  EXPECT_EQ(sizes({"--batch", "2"}).micro, 2);
  EXPECT_EQ(sizes({"--batch", "2"}).accumulation_steps, 3);
  EXPECT_EQ(sizes({"--accumulate", "4"}).micro, 6);
  EXPECT_EQ(sizes({"--accumulate", "4"}).accumulation_steps, 4);
  EXPECT_EQ(sizes({"--accumulate", "4", "--batch", "5"}).micro, 5);
}

TEST_F(ConfigFile, IsNamedByItsKeysWhereItContradictsItself) {
  write(R"({"optimizer": {"type": "OneBitAdam"},
            "zero_optimization": {"stage": 1}, "thinwire": {"lean": true}})");
  const config::Config config =
      training_config(parse({"--config", path.c_str()}));
  test::expect_error(ErrorCode::kInvalidArgument,
                     {"zero_optimization.stage", "it shards by itself"},
                     [&] { config.validate(2); });
}

TEST_F(ConfigFile, AutoStandsForWhatFlagsSay) {
  write(R"({"optimizer": {"type": "Adam", "params": {"lr": "auto"}},
            "scheduler": {"type": "WarmupDecayLR", "params":
                {"total_num_steps": "auto", "warmup_num_steps": "auto",
                 "warmup_max_lr": "auto"}},
            "train_gpt": {"steps": 300}})");
  Options options =
      parse({"--config", path.c_str(), "--warmup-steps", "20", "--lr", "0.25"});
  EXPECT_EQ(
      std::get<config::WarmupDecayLr>(training_config(options).schedule.shape),
      (config::WarmupDecayLr{.total_num_steps = 300,
                             .warmup_max_lr = 0.25,
                             .warmup_num_steps = 20}));
  EXPECT_EQ(options.lr, 0.25);
  options = parse({"--config", path.c_str(), "--warmup-steps", "0", "--steps",
                   "70"});  // flags win over the file's flags
  EXPECT_EQ(
      std::get<config::WarmupDecayLr>(training_config(options).schedule.shape),
      (config::WarmupDecayLr{.total_num_steps = 70, .warmup_num_steps = 1}));
  expect_usage_error({path.c_str(), "scheduler.params.warmup_num_steps",
                      "got \"auto\"", "--warmup-steps"},
                     [&] {
                       return parse({"--config", path.c_str()});
                     });
}

TEST_F(ConfigFile, AnotherOptimizerTakesNothingOfTheFiles) {
  write(R"({"optimizer": {"type": "OneBitAdam", "params": {"lr": 4e-4}}})");
  const Options options =
      parse({"--config", path.c_str(), "--optimizer", "lamb"});
  EXPECT_EQ(options.lr, 1e-2);
  EXPECT_EQ(config::name_of(training_config(options).optimizer), "lamb");
}

TEST(TrainingConfig, OfTheFlagsAloneIsValidForEveryOptimizer) {
  for (const std::string_view name : optimizer_names()) {
    for (const char* precision : {"fp32", "fp16", "bf16"}) {
      // fp16 is refused: its bits are none of fp32's.
      if (name == "lean_onebit_adam" && precision == std::string_view("fp16"))
        continue;
      const Options options =
          parse({"--optimizer", std::string(name).c_str(), "--precision",
                 precision, "--accumulate", "3"});
      const config::Config config = training_config(options);
      config.validate(4);
      EXPECT_EQ(config::name_of(config.optimizer), name);
      EXPECT_EQ(config.batch(4).accumulation_steps, 3);
      // The rate peaks when the warm-up ends and falls to a tenth.
      EXPECT_NEAR(config.schedule.rate(1, 49), 1, 1e-12);
      EXPECT_NEAR(config.schedule.rate(1, 499), 0.1, 1e-12);
    }
  }
}

TEST_F(ConfigFile, IsCheckedLikeFlags) {
  const auto parse_config_file = [this] {
    return parse({"--config", path.c_str()});
  };
  write(R"({"train_gpt": {"step": 30}})");
  expect_usage_error({path.c_str(), "no key 'step'", "'steps'"},
                     parse_config_file);
  write(R"({"train_gpt": {"steps": "many"}})");
  expect_usage_error({path.c_str(), "--steps", "many"}, parse_config_file);
  write(R"({"train_gpt": {"steps": 0}})");
  expect_usage_error({"--steps", "got 0"}, parse_config_file);
  write(R"({"train_gpt": {"steps": {"a": 1}}})");
  expect_usage_error({"train_gpt.steps", "must be a number"},
                     parse_config_file);
  write(R"({"train_gpt": {"help": true}})");
  expect_usage_error({"no key 'help'"}, parse_config_file);
  write(R"({"train_gpt": {"save_every": "often"}})");
  expect_usage_error({"--save-every", "often"}, parse_config_file);
  write(R"({"optimiser": {"type": "OneBitAdam"}})");
  expect_usage_error({path.c_str(), "optimiser", "optimizer"},
                     parse_config_file);
  write(R"({"train_gpt": )");
  expect_usage_error({path.c_str(), "--config"}, parse_config_file);
  write("[]");
  expect_usage_error({path.c_str(), "object"}, parse_config_file);
  std::filesystem::remove(path);
  expect_usage_error({"--config", path.c_str()}, parse_config_file);
}

TEST(Nearest, CountsEdits) {
  EXPECT_EQ(nearest("stpes", {"seed", "steps", "batch"}), "steps");
  EXPECT_EQ(nearest("", {"batch", "lr"}), "lr");
  EXPECT_EQ(nearest("lr", {"lr"}), "lr");
  EXPECT_EQ(nearest("warmup", {"help", "warmup-steps"}), "warmup-steps");
}

}  // namespace
}  // namespace thinwire::train_gpt::training_config_test
