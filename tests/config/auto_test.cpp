// SPDX-License-Identifier: Apache-2.0
// "auto", as Hugging Face's files have it.
#include <gtest/gtest.h>

#include <string>

#include "config/text.h"
#include "support/errors.h"
#include "thinwire/config/config.h"

namespace thinwire::config::auto_test {
namespace {

// What transformers' documentation shows.
constexpr std::string_view kFile = R"({
  "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000,
           "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1},
  "optimizer": {"type": "AdamW",
                "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                           "weight_decay": "auto"}},
  "scheduler": {"type": "WarmupDecayLR",
                "params": {"total_num_steps": "auto", "warmup_min_lr": "auto",
                           "warmup_max_lr": "auto",
                           "warmup_num_steps": "auto"}},
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto"})";

std::string without(std::string text, std::string_view part) {
  const auto at = text.find(part);
  EXPECT_NE(at, std::string::npos) << part;
  return text.erase(at, part.size());
}

TEST(ConfigAuto, TakesValuesOfTheProgram) {
  std::vector<KeyNote> notes;
  const Config config = Config::from_json(
      kFile, &notes,
      {.total_num_steps = 500, .warmup_num_steps = 50, .learning_rate = 0.25});
  EXPECT_EQ(std::get<WarmupDecayLr>(config.schedule.shape),
            (WarmupDecayLr{.total_num_steps = 500,
                           .warmup_max_lr = 0.25,
                           .warmup_num_steps = 50}));
  const auto& adam = std::get<optim::AdamOptions>(config.optimizer);
  EXPECT_EQ(adam.learning_rate, 0.25);
  EXPECT_EQ(adam.beta2, 0.999);
  for (const KeyNote& note : notes) {
    const bool is_taken = note.path.ends_with("_num_steps") ||
                          note.path.ends_with("warmup_max_lr") ||
                          note.path == "optimizer.params.lr";
    if (note.path.starts_with("scheduler.params.warmup_min")) {
      EXPECT_EQ(note.note, "as if absent");
    } else if (is_taken) {
      EXPECT_EQ(note.kind, KeyNote::Kind::kSupported) << note.path;
      EXPECT_EQ(note.note, "auto: from the program") << note.path;
    }
  }
  config.validate(4);
}

TEST(ConfigAuto, AWarmUpOfNoStepsCountsAsOne) {
  const Config config = Config::from_json(
      kFile, nullptr, {.total_num_steps = 9, .warmup_num_steps = 0});
  EXPECT_EQ(std::get<WarmupDecayLr>(config.schedule.shape).warmup_num_steps, 1);
}

TEST(ConfigAuto, TheHighestRateIsTheOptimizersOfTheFile) {
  std::string text(kFile);
  text.replace(text.find(R"("lr": "auto")"), 12, R"("lr": 0.125 )");
  const Config config = Config::from_json(
      text, nullptr, {.total_num_steps = 9, .warmup_num_steps = 3});
  EXPECT_EQ(std::get<WarmupDecayLr>(config.schedule.shape).warmup_max_lr,
            0.125);
}

TEST(ConfigAuto, NumbersOfStepsAreRejectedByPathWhereNobodyKnowsThem) {
  const auto rejected = [](std::string_view text, const AutoValues& autos,
                           std::initializer_list<std::string_view> parts) {
    thinwire::test::expect_invalid(parts, [&] {
      static_cast<void>(Config::from_json(text, nullptr, autos));
    });
  };
  rejected(kFile, {},
           {"scheduler.params.total_num_steps must be a number, got \"auto\", "
            "and the program gave no value for it"});
  rejected(kFile, {.total_num_steps = 500},
           {"scheduler.params.warmup_num_steps must", "got \"auto\""});
  // What the program says is checked as if the file said it.
  rejected(kFile, {.total_num_steps = 0, .warmup_num_steps = 0},
           {"scheduler.params.total_num_steps must be", ">= 1, got 0"});
  rejected(kFile,
           {.total_num_steps = 9, .warmup_num_steps = 3, .learning_rate = -1},
           {"optimizer.params.lr", "-1"});
  rejected(R"({"scheduler": {"type": "WarmupLR",
                            "params": {"warmup_num_steps": "auto"}}})",
           {}, {"scheduler.params.warmup_num_steps must", "got \"auto\""});
}

TEST(ConfigAuto, ElsewhereCountsAsAbsent) {
  const std::string text =
      without(std::string(kFile), R"("total_num_steps": "auto", )");
  thinwire::test::expect_invalid({"total_num_steps", "given"}, [&] {
    static_cast<void>(
        Config::from_json(text, nullptr, {.warmup_num_steps = 3}));
  });
  const Config config = test::read(R"({"scheduler": {"type": "WarmupLR",
      "params": {"warmup_max_lr": "auto", "warmup_min_lr": "auto"}}})");
  EXPECT_EQ(std::get<WarmupLr>(config.schedule.shape), WarmupLr{});
}

}  // namespace
}  // namespace thinwire::config::auto_test
