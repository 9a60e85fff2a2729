// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/options/command_line.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "examples/train_gpt/options/parsing.h"
#include "support/environment.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::train_gpt::command_line_test {
namespace {

using Signals = std::vector<int>;
using test::ScopedVariable;

TEST(CommandLine, ReadsEveryFlag) {
  const Options options = parse(
      "b.txt --optimizer adam --steps 30 --batch=2 --context 16 --layers 2 "
      "--width 24 --heads 3 --lr 2e-3 --semantics corrected --clip 0 "
      "--seed 18446744073709551615 --out o --quiet --comm local --ranks 3 "
      "--freeze-step auto --warmup-steps 0 --weight-decay 0.1 "
      "--set overlap=true --set threads=2");
  EXPECT_EQ(options.data, (std::vector<std::string>{"a.txt", "b.txt"}));
  EXPECT_EQ(options.optimizer, "adam");
  EXPECT_EQ(options.semantics, "corrected");
  EXPECT_EQ(options.steps, 30);
  EXPECT_EQ(options.batch, 2);
  EXPECT_EQ(options.context, 16u);
  EXPECT_EQ(options.layers, 2u);
  EXPECT_EQ(options.width, 24u);
  EXPECT_EQ(options.heads, 3u);
  EXPECT_EQ(options.lr, 2e-3);
  EXPECT_EQ(options.warmup_steps, 0);
  EXPECT_EQ(options.weight_decay, 0.1);
  EXPECT_EQ(options.clip, 0);
  EXPECT_EQ(options.seed, 18446744073709551615u);
  EXPECT_EQ(options.freeze_step, optim::kAutoFreeze);
  EXPECT_EQ(options.out, "o");
  EXPECT_TRUE(options.quiet);
  EXPECT_EQ(options.comm, "local");
  EXPECT_EQ(options.ranks, 3);
  EXPECT_EQ(options.set,
            (std::vector<std::string>{"overlap=true", "threads=2"}));
}

TEST(CommandLine, WhatIsNotGivenIsUnset) {
  const Options options = parse("");
  EXPECT_EQ(options.optimizer, std::nullopt);
  EXPECT_EQ(options.lr, std::nullopt);
  EXPECT_EQ(options.freeze_step, std::nullopt);
  EXPECT_EQ(options.resume, std::nullopt);
  EXPECT_EQ(options.steps, 500);
  EXPECT_FALSE(options.file);
}

TEST(CommandLine, TheLaterOfTwoValuesCounts) {
  EXPECT_EQ(parse("--steps 3 --steps 5").steps, 5);
}

TEST(CommandLine, NamesFlagRangeAndValue) {
  EXPECT_THROW(static_cast<void>(parse_all("")), CLI::ParseError);  // no --data
  for (const std::string flag : {"--steps", "--batch", "--context", "--layers",
                                 "--width", "--heads", "--freeze-step"})
    expect_usage_error(flag + " 0",
                       {flag, "must be in 1 .. 2147483647", "got '0'"});
  for (const std::string flag :
       {"--warmup-steps", "--keep-last", "--keep-every"})
    expect_usage_error(flag + " -1",
                       {flag, "must be in 0 .. 2147483647", "got '-1'"});
  for (const std::string flag : {"--lr", "--weight-decay", "--clip"})
    for (const char* value : {"-1", "nan", "inf", "fast"})
      expect_usage_error(flag + ' ' + value,
                         {flag, "must be finite and at least 0", value});
  expect_usage_error("--steps many", {"--steps", "must be in", "many"});
  expect_usage_error("--freeze-step soon",
                     {"--freeze-step", "or auto, got 'soon'"});
  expect_usage_error("--optimizer sgd",
                     {"--optimizer", "adam, onebit_adam, lamb", "'sgd'"});
  expect_usage_error("--semantics exact",
                     {"--semantics", "one of corrected, deepspeed", "'exact'"});
  expect_usage_error("--comm tcp", {"--comm", "one of local, mpi", "'tcp'"});
  expect_usage_error("--comm local --ranks 0", {"--ranks", "1 .. 1024", "'0'"});
  expect_usage_error("--heads 3",
                     {"--heads must be a divisor of --width 128, got 3"});
  expect_usage_error("--ranks 2", {"--ranks needs --comm local"});
}

TEST(CommandLine, UnknownFlagsNameTheNearest) {
  for (const auto& [flag, nearest] :
       {std::pair{"--warmup 3", "--warmup; the nearest is --warmup-steps"},
        std::pair{"--stpes=3", "--stpes; the nearest is --steps"},
        std::pair{"--clip-norm rms", "--clip-norm; the nearest is --clip"},
        std::pair{"--sed 3", "--sed; the nearest is --seed"}})
    expect_usage_error(flag, {std::string("no flag ") + nearest});
  // --validate-every is a key and no flag.
  for (const char* flag : {"--validate-evry=9", "--variance-refresh=9"}) try {
      static_cast<void>(parse(flag));
      ADD_FAILURE();
    } catch (const CLI::ParseError& error) {
      EXPECT_EQ(std::string(error.what()).find("nearest"), std::string::npos);
    }
}

// Each replacement is one that --set takes.
TEST(CommandLine, FlagsOfEarlierVersionsNameTheSetting) {
  for (const auto& [flag, setting, optimizer] :
       std::initializer_list<std::array<std::string, 3>>{
           {"--accumulate", "gradient_accumulation_steps=2", "adam"},
           {"--precision", "bf16.enabled=true", "adam"},
           {"--precision", "fp16.enabled=true", "adam"},
           {"--zero", "zero_optimization.stage=2", "adam"},
           {"--offload", "zero_optimization.offload_optimizer.device=cpu",
            "adam"},
           {"--var-freeze-step", "optimizer.params.var_freeze_step=7",
            "zero_one_adam"},
           {"--local-steps", "optimizer.params.local_step_clipper=2",
            "zero_one_adam"},
           {"--validate-every", "train_gpt.validate_every=5", "adam"},
           {"--validate-bytes", "train_gpt.validate_bytes=64", "adam"}}) {
    const std::string key = setting.substr(0, setting.find('='));
    expect_usage_error(flag + " 1",
                       {"no flag " + flag + "; write --set ", key});
    EXPECT_NO_THROW(parse("--optimizer " + optimizer + " --set " + setting));
  }
}

TEST(CommandLine, KeysWithoutAFlagAreSet) {
  const Options options = parse(
      "--set train_gpt.validate_every=5 --set train_gpt.validate_bytes=64");
  EXPECT_EQ(options.validate_every, 5);
  EXPECT_EQ(options.validate_bytes, 64u);
  expect_usage_error("--set train_gpt.validate_every=-1",
                     {"--set", "--validate-every", "got '-1'"});
  expect_usage_error("--set train_gpt.steps=3",
                     {"validate_every or validate_bytes", "got steps"});
}

TEST(CommandLine, NeitherInputNorTelemetryLiesInTheOutput) {
  const test::Folder all;
  const std::string folder = all.in("out");
  const auto refused = [](const std::string& file, const std::string& out) {
    expect_usage_error("--out " + out + " --set telemetry.path=" + file,
                       {"telemetry.path: '" + file, "--out '" + out});
    expect_usage_error(file + " --out " + out,
                       {"--data: '" + file, "--out '" + out});
  };
  refused(folder + "/metrics.jsonl", folder);
  refused(folder + "/new/../metrics.jsonl", folder + "/.");
  refused(folder + "/deeper/a.txt", folder);
  std::filesystem::create_directory(folder);
  const std::string link = all.in("link");
  std::filesystem::create_symlink(folder, link);
  refused(folder + "/metrics.jsonl", link);
  std::filesystem::remove(link);
  const std::string loop = folder + "/metrics.jsonl";
  std::filesystem::create_symlink(loop, loop);
  refused(loop, folder);
  EXPECT_NO_THROW(parse(loop + " --out " + link));
  // Beside it, whatever the names begin with.
  EXPECT_NO_THROW(parse(folder + ".txt --out " + folder));
}

TEST(CommandLine, ReportsAreMadeByAScript) {
  expect_usage_error("--compare a b",
                     {"no flag --compare; run ", "report.py RUN... --out DIR"});
}

TEST_F(ConfigFile, GivesWhatFlagsDoNot) {
  write(R"({"train_gpt": {"data": ["x", "y"], "steps": 30, "lr": 0.002,
            "warmup_steps": 5, "weight-decay": 0, "freeze_step": "auto",
            "clip": 3, "quiet": true, "seed": 12, "validate_every": 7,
            "set": ["overlap=false"]}})");
  const Options options = parse_all(config + "--seed 3").options;
  EXPECT_EQ(options.data, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(options.steps, 30);
  EXPECT_EQ(options.lr, 0.002);
  EXPECT_EQ(options.warmup_steps, 5);
  EXPECT_EQ(options.freeze_step, optim::kAutoFreeze);
  EXPECT_EQ(options.clip, 3);
  EXPECT_TRUE(options.quiet);
  EXPECT_EQ(options.validate_every, 7);
  EXPECT_EQ(options.set, std::vector<std::string>{"overlap=false"});
  EXPECT_EQ(options.seed, 3u) << "flags win";
}

TEST_F(ConfigFile, IsCheckedLikeFlags) {
  const auto refused = [this](const std::string& text,
                              std::initializer_list<std::string> parts) {
    SCOPED_TRACE(text);
    write(text);
    expect_usage_error(config, parts);
  };
  refused(R"({"train_gpt": {"step": 30}})",
          {path, "train_gpt has no key step; the nearest is steps"});
  refused(R"({"train_gpt": {"zero": 2}})",
          {path, "no key zero; write --set zero_optimization.stage=N"});
  refused(R"({"train_gpt": {"steps": "many"}})", {path, "--steps", "many"});
  refused(R"({"train_gpt": {"steps": 0}})", {"--steps", "got '0'"});
  refused(R"({"train_gpt": {"steps": {"a": 1}}})",
          {"train_gpt.steps must be a number"});
  refused(R"({"train_gpt": {"help": true}})", {"no key help"});
  refused(R"({"train_gpt": {"save_every": "often"}})",
          {"--save-every", "often"});
  refused(R"({"optimiser": {"type": "OneBitAdam"}})",
          {path, "optimiser", "optimizer"});
  refused(R"({"train_gpt": )", {path});
  refused("[]", {path, "object"});
  std::filesystem::remove(path);
  expect_usage_error(config, {path});
}

// ---- saving

Saving saving(const std::string& flags) {
  return parse_all("--data a.txt " + flags).saving;
}

TEST(Saving, HappensOnlyIfAskedFor) {
  const Saving none = saving("");
  EXPECT_FALSE(none.is_periodic());
  EXPECT_EQ(none.files.root, "out/train_gpt/checkpoints");
  EXPECT_EQ(none.files.keep_last, 2);
  EXPECT_EQ(none.files.keep_every, 0);
  EXPECT_TRUE(none.files.asynchronous);
  EXPECT_EQ(none.signals, Signals{SIGUSR1});
}

TEST(Saving, FollowsAllFlags) {
  const std::string flags =
      "--out o --save-every 20 --keep-last 5 --keep-every 100 --save-sync "
      "--resume c/step-1 --resume-fallback --checkpoints c --resume-new-data "
      "--save-on USR2,TERM,INT";
  const Saving all = saving(flags);
  EXPECT_EQ(all.files.every_steps, 20);
  EXPECT_EQ(all.files.every.count(), 0);
  EXPECT_EQ(all.files.keep_last, 5);
  EXPECT_EQ(all.files.keep_every, 100);
  EXPECT_FALSE(all.files.asynchronous);
  EXPECT_EQ(all.files.root, "c");
  EXPECT_EQ(all.signals, (Signals{SIGUSR2, SIGTERM, SIGINT}));
  const Options options = parse(flags);
  EXPECT_EQ(options.resume, "c/step-1");
  EXPECT_TRUE(options.resume_fallback);
  EXPECT_TRUE(options.resume_new_data);
}

TEST(Saving, TellsTimesFromSteps) {
  const Saving timed = saving("--save-every 10min");
  EXPECT_EQ(timed.files.every, std::chrono::minutes(10));
  EXPECT_EQ(timed.files.every_steps, 0);
  EXPECT_TRUE(timed.is_periodic());
  for (const std::string wrong :
       {"0", "-1", "10 min", "min", "1.5", "9999999999"})
    expect_usage_error_of(
        [&] {
          return parse_words({"--data", "a.txt", "--save-every", wrong});
        },
        {"--save-every", "must be steps in 1 .. ", "10min", wrong});
}

TEST(Saving, ResumeAloneIsAuto) {
  for (const char* alone : {"--resume", "--resume --steps 7", "--resume auto"})
    EXPECT_EQ(parse(alone).resume, kAutoResume) << alone;
  EXPECT_EQ(parse("--resume a --resume b").resume, "b");
}

TEST(Saving, NamesWhatIsWrong) {
  expect_usage_error("--save-on USR1,HUP",
                     {"--save-on", "USR1, USR2, TERM, INT", "HUP"});
  for (const std::string flag : {"--resume-fallback", "--resume-new-data"})
    expect_usage_error(flag, {flag + " needs --resume"});
  for (const std::string same : {"o", "./o", "o/", "p/../o"})
    expect_usage_error("--out o --checkpoints " + same,
                       {"--checkpoints must be another directory than --out"});
  for (const std::string flag : {"--checkpoints", "--resume"})
    expect_usage_error_of(
        [&] {
          return parse_words({"--data", "a.txt", flag, ""});
        },
        {flag, "must be a directory, got ''"});
}

// SIGTERM is mpirun's word for a rank that has died.
TEST(Saving, SignalsDependOnTheLauncher) {
  const Signals all{SIGUSR1, SIGTERM, SIGINT};
  for (const char* saves : {"--save-every 5", "--resume", "--checkpoints c"})
    EXPECT_EQ(saving(saves).signals, all) << saves;
  {
    const ScopedVariable size("OMPI_COMM_WORLD_SIZE", "4");
    EXPECT_EQ(saving("--save-every 5").signals, Signals{SIGUSR1});
    EXPECT_EQ(saving("--save-on USR2").signals, Signals{SIGUSR2});
    expect_usage_error("--save-on TERM",
                       {"--save-on must be USR1 or USR2 under mpirun", "TERM"});
  }
  const ScopedVariable size("PMI_SIZE", "4");
  EXPECT_EQ(saving("--save-every 5").signals, Signals{SIGUSR1});
  const ScopedVariable tasks("SLURM_STEP_NUM_TASKS", "4");
  EXPECT_EQ(saving("--save-every 5").signals, all);
}

TEST_F(ConfigFile, SaysOfSavingWhatNoFlagDoes) {
  write(R"({"thinwire": {"checkpoint": {"root": "C", "every_steps": 9,
            "keep_last": 4, "asynchronous": false}},
            "train_gpt": {"resume": "auto", "save_on": "USR2"}})");
  const Saving file = saving(config);
  EXPECT_EQ(file.files.root, "C");
  EXPECT_EQ(file.files.every_steps, 9);
  EXPECT_EQ(file.files.keep_last, 4);
  EXPECT_FALSE(file.files.asynchronous);
  EXPECT_EQ(file.signals, Signals{SIGUSR2});
  const Saving flags =
      saving(config +
             "--save-every 2h --keep-last 1 --checkpoints D --set "
             "checkpoint.keep_every=7");
  EXPECT_EQ(flags.files.root, "D");
  EXPECT_EQ(flags.files.every_steps, 0);
  EXPECT_EQ(flags.files.every, std::chrono::hours(2));
  EXPECT_EQ(flags.files.keep_last, 1);
  EXPECT_EQ(flags.files.keep_every, 7);
}

}  // namespace
}  // namespace thinwire::train_gpt::command_line_test
