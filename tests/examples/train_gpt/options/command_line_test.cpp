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

namespace thinwire::train_gpt::command_line_test {
namespace {

using Signals = std::vector<int>;
using test::ScopedVariable;

TEST(CommandLine, ReadsEveryFlagAndKey) {
  const Options options = parse(
      "b.txt --optimizer adam --steps 30 --out o --ranks 3 "
      "--seed 18446744073709551615 --set overlap=true --set threads=2 "
      "--set train_gpt.context=16 --set train_gpt.layers=2 "
      "--set train_gpt.width=24 --set train_gpt.heads=3 "
      "--set train_gpt.warmup_steps=0 --set train_gpt.validate_every=5 "
      "--set train_gpt.validate_bytes=64 --set train_gpt.quiet=true");
  EXPECT_EQ(options.data, (std::vector<std::string>{"a.txt", "b.txt"}));
  EXPECT_EQ(options.optimizer, "adam");
  EXPECT_EQ(options.steps, 30);
  EXPECT_EQ(options.context, 16u);
  EXPECT_EQ(options.layers, 2u);
  EXPECT_EQ(options.width, 24u);
  EXPECT_EQ(options.heads, 3u);
  EXPECT_EQ(options.warmup_steps, 0);
  EXPECT_EQ(options.validate_every, 5);
  EXPECT_EQ(options.validate_bytes, 64u);
  EXPECT_EQ(options.seed, 18446744073709551615u);
  EXPECT_EQ(options.out, "o");
  EXPECT_TRUE(options.quiet);
  EXPECT_EQ(options.ranks, 3);
  EXPECT_EQ(options.set[0], "overlap=true");
  EXPECT_EQ(options.set[1], "threads=2");
}

TEST(CommandLine, OptionsThatAreNotGivenAreUnset) {
  const Options options = parse("");
  EXPECT_EQ(options.optimizer, std::nullopt);
  EXPECT_EQ(options.ranks, std::nullopt);
  EXPECT_EQ(options.warmup_steps, std::nullopt);
  EXPECT_EQ(options.resume, std::nullopt);
  EXPECT_EQ(options.steps, 500);
  EXPECT_FALSE(options.file);
}

TEST(CommandLine, TheLaterOfTwoValuesCounts) {
  EXPECT_EQ(parse("--steps 3 --steps 5").steps, 5);
  EXPECT_EQ(parse("--set train_gpt.steps=7 --steps 5").steps, 7)
      << "--set wins";
  EXPECT_EQ(parse("--set train_gpt.width=8 --set train_gpt.width=16").width,
            16u);
}

TEST(CommandLine, NamesFlagRangeAndValue) {
  EXPECT_THROW(static_cast<void>(parse_all("")), CLI::ParseError);  // no --data
  for (const std::string key : {"context", "layers", "width", "heads"})
    expect_usage_error(
        "--set train_gpt." + key + "=0",
        {"--set train_gpt." + key + ": must be in 1 .. 2147483647, got '0'"});
  for (const std::string key : {"warmup_steps", "validate_every"})
    expect_usage_error(
        "--set train_gpt." + key + "=-1",
        {"--set train_gpt." + key + ": must be in 0 .. 2147483647, got '-1'"});
  expect_usage_error(
      "--set train_gpt.quiet=perhaps",
      {"--set train_gpt.quiet: must be one of true, false", "perhaps"});
  expect_usage_error("--set train_gpt.width=", {"--set train_gpt.width: "});
  expect_usage_error("--steps 0",
                     {"--steps: must be in 1 .. 2147483647, got '0'"});
  expect_usage_error("--steps many", {"--steps", "must be in", "many"});
  expect_usage_error("--optimizer sgd",
                     {"--optimizer", "adam, onebit_adam, lamb", "'sgd'"});
  expect_usage_error("--ranks 0", {"--ranks", "1 .. 1024", "'0'"});
  expect_usage_error(
      "--set train_gpt.heads=3",
      {"train_gpt.heads must be a divisor of train_gpt.width 128, got 3"});
  const ScopedVariable size("OMPI_COMM_WORLD_SIZE", "4");
  expect_usage_error("--ranks 2", {"--ranks: this is one of 4 launched"});
}

TEST(CommandLine, HasTenFlags) {
  CLI::App app("", "train_gpt");
  const CommandLine command_line(app);
  EXPECT_EQ(app.get_options().size(), 1u + 10) << "and --help";
  EXPECT_NE(app.help().find("  warmup_steps N"), std::string::npos)
      << app.help();
}

TEST(CommandLine, UnknownNamesLeadToTheNearest) {
  for (const auto& [flag, nearest] :
       {std::pair{"--save 3", "--save; the nearest is --save-every"},
        std::pair{"--stpes=3", "--stpes; the nearest is --steps"},
        std::pair{"--seeds 3", "--seeds; the nearest is --seed"}})
    expect_usage_error(flag, {std::string("no flag ") + nearest});
  expect_usage_error("--set train_gpt.widht=3",
                     {"train_gpt has no key widht; the nearest is width"});
  for (const char* far : {"--variance-refresh=9", "--set train_gpt.config=a"})
    try {
      static_cast<void>(parse(far));
      ADD_FAILURE();
    } catch (const CLI::ParseError& error) {
      EXPECT_EQ(std::string(error.what()).find("nearest"), std::string::npos);
    }
}

// Each replacement is one that --set takes.
TEST(CommandLine, FlagsOfEarlierVersionsNameTheSetting) {
  for (const auto& [flag, setting] :
       std::initializer_list<std::array<std::string, 2>>{
           {"--semantics", "semantics=deepspeed"},
           {"--freeze-step", "optimizer.params.freeze_step=7"},
           {"--freeze-step", "auto_freeze=true"},
           {"--batch", "train_micro_batch_size_per_gpu=2"},
           {"--lr", "optimizer.params.lr=0.1"},
           {"--weight-decay", "optimizer.params.weight_decay=0.1"},
           {"--clip", "gradient_clipping=0"},
           {"--keep-last", "checkpoint.keep_last=3"},
           {"--keep-every", "checkpoint.keep_every=3"},
           {"--checkpoints", "checkpoint.root=c"},
           {"--save-sync", "checkpoint.asynchronous=false"},
           {"--context", "train_gpt.context=8"},
           {"--layers", "train_gpt.layers=2"},
           {"--width", "train_gpt.width=8"},
           {"--heads", "train_gpt.heads=2"},
           {"--warmup-steps", "train_gpt.warmup_steps=5"},
           {"--validate-every", "train_gpt.validate_every=5"},
           {"--quiet", "train_gpt.quiet=true"},
           {"--resume-fallback", "train_gpt.resume_fallback=true"},
           {"--resume-new-data", "train_gpt.resume_new_data=true"},
           {"--save-on", "train_gpt.save_on=USR2"}}) {
    const std::string key = setting.substr(0, setting.find('='));
    expect_usage_error(flag + "=1", {"no flag " + flag + "; write --set ",
                                     "--set " + key + "="});
    EXPECT_NO_THROW(parse("--resume --set " + setting)) << setting;
  }
  expect_usage_error("--comm local", {"no flag --comm; write --ranks N"});
  expect_usage_error("--set train_gpt.set=3", {"no key set; a file has these"});
  expect_usage_error("--set train_gpt.lr=3",
                     {"no key lr; write --set optimizer.params.lr=RATE"});
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
  expect_usage_error("--compare=a",
                     {"no flag --compare; run ", "report.py RUN... --out DIR"});
}

TEST_F(ConfigFile, GivesWhatFlagsDoNot) {
  write(R"({"train_gpt": {"data": ["x", "y"], "steps": 30, "ranks": 2,
            "warmup_steps": 5, "quiet": true, "seed": 12,
            "validate_every": 7, "width": 8, "save_every": 20}})");
  const Options options =
      parse_all(config + "--seed 3 --set train_gpt.width=16").options;
  EXPECT_EQ(options.data, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(options.steps, 30);
  EXPECT_EQ(options.ranks, 2);
  EXPECT_EQ(options.warmup_steps, 5);
  EXPECT_TRUE(options.quiet);
  EXPECT_EQ(options.validate_every, 7);
  EXPECT_EQ(options.save_every, "20");
  EXPECT_EQ(options.seed, 3u) << "flags win";
  EXPECT_EQ(options.width, 16u) << "and --set";
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
  refused(R"({"train_gpt": {"clip": 2}})",
          {path, "no key clip; write --set gradient_clipping=NORM"});
  refused(R"({"train_gpt": {"set": ["overlap=false"]}})",
          {path, "no key set; a file has these keys themselves"});
  refused(R"({"train_gpt": {"steps": "many"}})",
          {path, "train_gpt.steps: must be in", "many"});
  refused(R"({"train_gpt": {"width": 0}})",
          {"train_gpt.width: must be in", "got '0'"});
  refused(R"({"train_gpt": {"steps": {"a": 1}}})",
          {"train_gpt.steps must be a number"});
  refused(R"({"train_gpt": {"help": true}})", {"no key help"});
  refused(R"({"train_gpt": {"save_every": "often"}})",
          {"train_gpt.save_every", "often"});
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

TEST(Saving, FollowsFlagsAndKeys) {
  const std::string flags =
      "--out o --save-every 20 --resume c/step-1 --set checkpoint.keep_last=5 "
      "--set checkpoint.keep_every=100 --set checkpoint.asynchronous=false "
      "--set checkpoint.root=c --set train_gpt.resume_fallback=true "
      "--set train_gpt.resume_new_data=true "
      "--set train_gpt.save_on=USR2,TERM,INT";
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
  expect_usage_error(
      "--set train_gpt.save_on=USR1,HUP",
      {"--set train_gpt.save_on: ", "USR1, USR2, TERM, INT", "HUP"});
  for (const std::string key : {"resume_fallback", "resume_new_data"})
    expect_usage_error("--set train_gpt." + key + "=true",
                       {"train_gpt." + key + " needs --resume"});
  for (const std::string same : {"o", "./o", "o/", "p/../o"})
    expect_usage_error(
        "--out o --set checkpoint.root=" + same,
        {"checkpoint.root must be another directory than --out"});
  expect_usage_error_of(
      [&] {
        return parse_words({"--data", "a.txt", "--resume", ""});
      },
      {"--resume", "must be a directory, got ''"});
}

// SIGTERM is mpirun's word for a rank that has died.
TEST(Saving, SignalsDependOnTheLauncher) {
  const Signals all{SIGUSR1, SIGTERM, SIGINT};
  for (const char* saves :
       {"--save-every 5", "--resume", "--set checkpoint.root=c"})
    EXPECT_EQ(saving(saves).signals, all) << saves;
  {
    const ScopedVariable size("OMPI_COMM_WORLD_SIZE", "4");
    EXPECT_EQ(saving("--save-every 5").signals, Signals{SIGUSR1});
    EXPECT_EQ(saving("--set train_gpt.save_on=USR2").signals, Signals{SIGUSR2});
    expect_usage_error(
        "--set train_gpt.save_on=TERM",
        {"train_gpt.save_on must be USR1 or USR2 under mpirun", "TERM"});
  }
  const ScopedVariable size("PMI_SIZE", "4");
  EXPECT_EQ(saving("--save-every 5").signals, Signals{SIGUSR1});
  const ScopedVariable tasks("SLURM_STEP_NUM_TASKS", "4");
  EXPECT_EQ(saving("--save-every 5").signals, all);
}

TEST_F(ConfigFile, SaysWhereAndWhenToSave) {
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
             "--save-every 2h --set checkpoint.keep_last=1 --set "
             "checkpoint.root=D --set checkpoint.keep_every=7");
  EXPECT_EQ(flags.files.root, "D");
  EXPECT_EQ(flags.files.every_steps, 0);
  EXPECT_EQ(flags.files.every, std::chrono::hours(2));
  EXPECT_EQ(flags.files.keep_last, 1);
  EXPECT_EQ(flags.files.keep_every, 7);
}

}  // namespace
}  // namespace thinwire::train_gpt::command_line_test
