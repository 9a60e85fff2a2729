// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/options/settings.h"

#include <gtest/gtest.h>

#include "apps/train_gpt/options/parsing.h"
#include "apps/train_gpt/options/training_config.h"
#include "support/folder.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::train_gpt::settings_test {
namespace {

using config::Config;

TEST(Settings, AreKeysOfTheFilesObject) {
  const Options options =
      parse({"--optimizer", "adam", "--zero", "2", "--set", "zero_bits_up=4",
             "--set", "zero_bits_down=8", "--set", "hierarchy=flat", "--set",
             "telemetry.path=out/Steps.jsonl", "--set", "telemetry.every=10",
             "--set", "overlap=false", "--set", "zero_bits_up=8"});
  const Config config = training_config(options);
  EXPECT_EQ(config.zero.wire.bits_up, 8) << "the later one wins";
  EXPECT_EQ(config.zero.wire.bits_down, 8);
  EXPECT_EQ(config.comm.hierarchy, config::Hierarchy::kFlat);
  EXPECT_EQ(config.telemetry.path, "out/Steps.jsonl");
  EXPECT_EQ(config.telemetry.every, 10);
  EXPECT_FALSE(config.comm.overlap);
  EXPECT_NO_THROW(config.validate(2));
}

TEST(Settings, TelemetryIsNoneOfTheRunsOwnFiles) {
  for (const char* path :
       {"out/run/metrics.jsonl", "./out/run/report.html",
        "out/../out/run/config.json", "out/run/summary.json"}) {
    const std::string setting = std::string("telemetry.path=") + path;
    expect_usage_error(
        {"telemetry.path must be none of the files", "--out out/run", path},
        [&] {
          return parse({"--out", "out/run", "--set", setting.c_str()});
        });
  }
  for (const char* setting : {"telemetry.path=out/run/steps.jsonl",
                              "telemetry.path=out/metrics.jsonl"})
    EXPECT_NO_THROW(parse({"--out", "out/run", "--set", setting})) << setting;
}

TEST(Settings, TelemetryMayBeWhereNoPathLeads) {
  const test::Folder folder;
  const std::filesystem::path run = folder.in("run");
  std::filesystem::create_directory(run);
  const auto parse_with = [&](const std::filesystem::path& telemetry) {
    const std::string setting = "telemetry.path=" + telemetry.string();
    return parse({"--out", run.c_str(), "--set", setting.c_str()});
  };
  const std::filesystem::path loop = run / "metrics.jsonl";
  std::filesystem::create_symlink(loop, loop);
  EXPECT_NO_THROW(parse_with(loop / "steps.jsonl"));
  expect_usage_error({"telemetry.path must be none of the files"},
                     [&] { return parse_with(loop); });
}

TEST(Settings, LeaveTheRestAsItIs) {
  for (const std::string_view name : optimizer_names()) {
    Options options;
    options.optimizer = name;
    options.lr = 1.25e-3;
    options.steps = 321;
    Config expected = training_config(options);
    expected.comm.verify_every = 7;
    options.set = {"verify_every=7"};
    EXPECT_EQ(training_config(options), expected) << name;
  }
}

TEST(Settings, AndTheFlagOfTheSameAgree) {
  Options options = parse({"--set", "lean=true"});
  EXPECT_EQ(options.optimizer, "lean_onebit_adam");
  EXPECT_EQ(training_config(options), [] {
    Options lean = parse({"--optimizer", "lean_onebit_adam"});
    return training_config(lean);
  }());
  options = parse({"--set", "semantics=deepspeed"});
  EXPECT_EQ(options.semantics, config::Semantics::kDeepSpeed);
  options = parse({"--set", "checkpoint.keep_last=7"});
  EXPECT_EQ(options.file.checkpoint.keep_last, 7);
}

TEST_F(ConfigFile, IsOverruledBySettings) {
  write(R"({"thinwire": {"hierarchy": "flat", "verify_every": 3},
            "train_gpt": {"set": ["verify_every=5"]}})");
  const Options options =
      parse({"--config", path.c_str(), "--set", "hierarchy=by_host"});
  const Config config = training_config(options);
  EXPECT_EQ(config.comm.hierarchy, config::Hierarchy::kByHost);
  EXPECT_EQ(config.comm.verify_every, 3) << "the flag replaces the file's";
  EXPECT_EQ(
      training_config(parse({"--config", path.c_str()})).comm.verify_every, 5);
}

TEST(Settings, NameTheKeyThatIsWrong) {
  const auto refused = [](const char* setting,
                          std::initializer_list<const char*> parts) {
    SCOPED_TRACE(setting);
    expect_usage_error(parts, [&] { return parse({"--set", setting}); });
  };
  refused("zero_bits_up", {"--set must be KEY=VALUE", "'zero_bits_up'"});
  refused("=4", {"--set must be KEY=VALUE", "'=4'"});
  refused("verify_evry=4", {"thinwire.verify_evry", "'verify_every'?"});
  refused("verify_every=often", {"thinwire.verify_every", "\"often\""});
  refused("verify_every.x=4", {"--set", "thinwire.verify_every"});
  refused("fallback=true", {"thinwire.fallback", "off, warn, hold", "true"});
  refused("zero_bits_up=4",
          {"thinwire.zero_bits_up is of Adam, AdamW, Lamb, not of OneBitAdam"});
  refused("denominator_bits=4", {"thinwire.denominator_bits", "thinwire.lean"});
  refused("compressed_during_backward=true",
          {"thinwire.compressed_during_backward", "lagged_clipping"});
  expect_usage_error(
      {"--set", "thinwire.lean must be true", "--optimizer"}, [] {
        return parse(
            {"--optimizer", "lean_onebit_adam", "--set", "lean=false"});
      });
}

TEST(Settings, StandInTheReport) {
  const auto settings = settings_of(
      parse({"--set", "hierarchy=flat", "--set", "verify_every=7"}));
  EXPECT_EQ(settings.back(),
            (std::pair<std::string, std::string>{
                "set", R"(["hierarchy=flat","verify_every=7"])"}));
}

}  // namespace
}  // namespace thinwire::train_gpt::settings_test
