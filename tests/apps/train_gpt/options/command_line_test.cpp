// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/options/command_line.h"

#include <gtest/gtest.h>

#include "apps/train_gpt/options/parsing.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::train_gpt::command_line_test {
namespace {

TEST(CommandLine, DefaultsAreTheDemos) {
  const Options options = parse({});
  EXPECT_EQ(options.data, std::vector<std::string>{"a.txt"});
  EXPECT_EQ(options.optimizer, "onebit_adam");
  EXPECT_EQ(options.layers, 4);
  EXPECT_EQ(options.width, 128);
  EXPECT_EQ(options.heads, 4);
  EXPECT_EQ(options.context, 64);
  EXPECT_EQ(options.batch, 8);
  EXPECT_EQ(options.steps, 500);
  EXPECT_EQ(options.lr, 1.5e-3);
  EXPECT_EQ(options.warmup_steps, 50);
  EXPECT_EQ(options.clip, 1.0);
  EXPECT_EQ(options.weight_decay, 0);
  EXPECT_EQ(options.freeze_step, 100);
  EXPECT_EQ(options.semantics, config::Semantics::kCorrected);
}

TEST(CommandLine, EveryOptimizerHasItsLearningRate) {
  for (const char* name :
       {"adam", "onebit_adam", "zero_one_adam", "lean_onebit_adam"}) {
    const Options options = parse({"--optimizer", name});
    EXPECT_EQ(options.lr, 1.5e-3) << name;
  }
  for (const char* name : {"lamb", "onebit_lamb"}) {
    const Options options = parse({"--optimizer", name});
    EXPECT_EQ(options.lr, 1e-2) << name;
    EXPECT_EQ(options.clip, 1) << name;
  }
  EXPECT_EQ(parse({"--optimizer", "lamb", "--lr", "2e-3"}).lr, 2e-3);
}

TEST(CommandLine, PhasesFollowFromTheSteps) {
  Options options = parse({});
  EXPECT_EQ(options.var_freeze_step, 250);
  EXPECT_EQ(options.local_steps, 4);
  options = parse({"--steps", "20000"});
  EXPECT_EQ(options.freeze_step, 4000);
  EXPECT_EQ(options.var_freeze_step, 10'000);
  EXPECT_EQ(options.local_steps, 16);
  options = parse({"--steps", "9999"});
  EXPECT_EQ(options.local_steps, 4);
  options = parse({"--steps", "200"});
  EXPECT_EQ(options.freeze_step, 50) << "not before the warm-up ends";
  options = parse({"--steps", "1", "--warmup-steps", "0"});
  EXPECT_EQ(options.freeze_step, 1);
  EXPECT_EQ(options.var_freeze_step, 1);
  options = parse({"--steps", "100", "--freeze-step", "30", "--var-freeze-step",
                   "40", "--local-steps", "8"});
  EXPECT_EQ(options.freeze_step, 30);
  EXPECT_EQ(options.var_freeze_step, 40);
  EXPECT_EQ(options.local_steps, 8);
}

TEST(CommandLine, ReadsEveryFlag) {
  const Options options = parse({"b.txt",
                                 "--optimizer",
                                 "adam",
                                 "--steps",
                                 "30",
                                 "--batch=2",
                                 "--context",
                                 "16",
                                 "--layers",
                                 "2",
                                 "--width",
                                 "24",
                                 "--heads",
                                 "3",
                                 "--lr",
                                 "2e-3",
                                 "--warmup-steps",
                                 "0",
                                 "--weight-decay",
                                 "0.1",
                                 "--clip",
                                 "0",
                                 "--seed",
                                 "7",
                                 "--freeze-step",
                                 "auto",
                                 "--var-freeze-step",
                                 "12",
                                 "--local-steps",
                                 "8",
                                 "--out",
                                 "o",
                                 "--quiet",
                                 "--comm",
                                 "local",
                                 "--ranks",
                                 "3"});
  EXPECT_EQ(options.data, (std::vector<std::string>{"a.txt", "b.txt"}));
  EXPECT_EQ(options.optimizer, "adam");
  EXPECT_EQ(options.steps, 30);
  EXPECT_EQ(options.batch, 2);
  EXPECT_EQ(options.context, 16);
  EXPECT_EQ(options.layers, 2);
  EXPECT_EQ(options.width, 24);
  EXPECT_EQ(options.heads, 3);
  EXPECT_EQ(options.lr, 2e-3);
  EXPECT_EQ(options.warmup_steps, 0);
  EXPECT_EQ(options.weight_decay, 0.1);
  EXPECT_EQ(options.clip, 0);
  EXPECT_EQ(options.seed, 7u);
  EXPECT_EQ(options.freeze_step, optim::kAutoFreeze);
  EXPECT_EQ(options.var_freeze_step, 12);
  EXPECT_EQ(options.local_steps, 8);
  EXPECT_EQ(options.out, "o");
  EXPECT_TRUE(options.quiet);
  EXPECT_EQ(options.comm, CommChoice::kLocal);
  EXPECT_EQ(options.ranks, 3);
}

TEST(CommandLine, TheLaterOfTwoValuesCounts) {
  EXPECT_EQ(parse({"--steps", "3", "--steps", "5"}).steps, 5);
}

TEST(CommandLine, NamesFlagRangeAndValue) {
  expect_usage_error({"--data", "missing"}, [] { return parse_all({}); });
  expect_usage_error({"--optimizer",
                      "adam, onebit_adam, lamb, onebit_lamb, "
                      "zero_one_adam",
                      "'sgd'"},
                     [] {
                       return parse({"--optimizer", "sgd"});
                     });
  for (const char* flag :
       {"--steps", "--batch", "--context", "--layers", "--width", "--heads",
        "--freeze-step", "--var-freeze-step", "--local-steps"}) {
    expect_usage_error({flag, "1 .. 2147483647", "got 0"}, [&] {
      return parse({flag, "0"});
    });
  }
  expect_usage_error({"--warmup-steps", "0 .. ", "-1"}, [] {
    return parse({"--warmup-steps", "-1"});
  });
  for (const char* flag : {"--lr", "--weight-decay", "--clip"}) {
    expect_usage_error({flag, "at least 0", "-1"}, [&] {
      return parse({flag, "-1"});
    });
    expect_usage_error({flag, "finite", "nan"}, [&] {
      return parse({flag, "nan"});
    });
  }
  expect_usage_error({"--heads", "divisor of --width 128", "got 3"}, [] {
    return parse({"--heads", "3"});
  });
  expect_usage_error({"--steps", "many"}, [] {
    return parse({"--steps", "many"});
  });
  expect_usage_error({"--freeze-step", "auto", "'soon'"}, [] {
    return parse({"--freeze-step", "soon"});
  });
  expect_usage_error({"--semantics", "corrected or deepspeed", "'exact'"}, [] {
    return parse({"--semantics", "exact"});
  });
  expect_usage_error({"--comm", "local or mpi", "'tcp'"}, [] {
    return parse({"--comm", "tcp"});
  });
  expect_usage_error({"--ranks", "1 .. 1024", "got 0"}, [] {
    return parse({"--comm", "local", "--ranks", "0"});
  });
}

TEST(CommandLine, RefusesCombinationsThatMeanNothing) {
  expect_usage_error({"--ranks needs --comm local"}, [] {
    return parse({"--ranks", "2"});
  });
  expect_usage_error({"--semantics", "corrected with --freeze-step auto"}, [] {
    return parse({"--semantics", "deepspeed", "--freeze-step", "auto"});
  });
  expect_usage_error({"--compare needs --out"}, [] {
    return parse_all({"--compare", "a", "b"});
  });
}

TEST(CommandLine, UnknownFlagsNameTheNearest) {
  expect_usage_error({"--warmup", "nearest is --warmup-steps"}, [] {
    return parse({"--warmup", "3"});
  });
  expect_usage_error({"no flag --step;", "--steps"},
                     [] { return parse({"--step=3"}); });
}

TEST(CommandLine, CompareTakesFolders) {
  const Invocation invocation =
      parse_all({"--compare", "a", "b", "--out", "c"});
  EXPECT_EQ(invocation.compare, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(invocation.options.out, "c");
}

TEST(CommandLine, PrecisionIsOneOfThree) {
  expect_usage_error({"--precision", "fp32, fp16 or bf16", "'fp8'"}, [] {
    return parse({"--precision", "fp8"});
  });
  expect_usage_error({"--accumulate", "got 0"}, [] {
    return parse({"--accumulate", "0"});
  });
}

TEST(CommandLine, ZeroIsForExactOptimizers) {
  const Options options =
      parse({"--optimizer", "adam", "--zero", "2", "--offload"});
  EXPECT_EQ(options.zero, 2);
  EXPECT_TRUE(options.offload);
  expect_usage_error({"--zero", "0, 1 or 2", "got 3"}, [] {
    return parse({"--optimizer", "adam", "--zero", "3"});
  });
  expect_usage_error({"--offload needs --zero"}, [] {
    return parse({"--optimizer", "adam", "--offload"});
  });
  expect_usage_error(
      {"--optimizer", "adam or lamb with --zero", "lean_onebit_adam"}, [] {
        return parse({"--optimizer", "onebit_adam", "--zero", "1"});
      });
}

TEST(SettingsOf, HasWhatDecidesTheResult) {
  Options options;
  options.freeze_step = optim::kAutoFreeze;
  const auto settings = settings_of(options);
  EXPECT_EQ(settings.front(),
            (std::pair<std::string, std::string>{"optimizer", "onebit_adam"}));
  EXPECT_EQ(settings[2].second, "auto");
  EXPECT_EQ(settings.size(), 20u);
}

}  // namespace
}  // namespace thinwire::train_gpt::command_line_test
