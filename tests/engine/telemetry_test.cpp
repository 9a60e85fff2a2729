// SPDX-License-Identifier: Apache-2.0
#include "thinwire/engine/telemetry.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/folder.h"
#include "support/kept_log.h"

namespace thinwire::engine::telemetry_test {
namespace {

using Object = nlohmann::ordered_json;

EngineReport example() {
  EngineReport report;
  report.phase = optim::Phase::kCompressed;
  report.steps = 7;
  report.learning_rate = 0.25;
  report.loss_scale = 1024;
  report.grad_norm = 3;
  report.grad_norm_is_estimate = true;
  report.clip_factor = 0.5;
  report.seconds = 0.4;
  report.backward_seconds = 0.3;
  report.exchange_seconds = 0.05;
  report.comm_busy_seconds = 0.2;
  report.bytes_sent = 100;
  report.bytes_between_hosts = 60;
  report.messages = 9;
  report.collectives = 3;
  report.late_elements = 11;
  report.waited_for = "layer \"1\"";
  return report;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(TelemetryLine, HasTheKeysInTheirOrder) {
  TelemetryExtra extra{.residual_ratio = 0.75};
  extra.memory.now[static_cast<std::size_t>(MemoryKind::kStates)] = 42;
  const std::string line = telemetry_line(example(), extra);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const Object json = Object::parse(line);
  const Object want = {
      {"step", 7},
      {"applied", true},
      {"phase", "compressed"},
      {"loss_scale", 1024.0},
      {"grad_norm", 3.0},
      {"is_estimate", true},
      {"clip_factor", 0.5},
      {"lr", 0.25},
      {"seconds",
       {{"step", 0.4}, {"backward", 0.3}, {"wait", 0.05}, {"comm_busy", 0.2}}},
      {"bytes_sent", 100},
      {"bytes_between_hosts", 60},
      {"messages", 9},
      {"collectives", 3},
      {"overlap", 0.75},
      {"late_elements", 11},
      {"waited_for", "layer \"1\""},
      {"residual_ratio", 0.75},
      {"memory",
       {{"parameters", 0},
        {"gradients", 0},
        {"states", 42},
        {"buckets", 0},
        {"other", 0}}}};
  EXPECT_EQ(json, want);
  std::vector<std::string> keys, wanted;
  for (const auto& [key, unused] : json.items()) keys.push_back(key);
  for (const auto& [key, unused] : want.items()) wanted.push_back(key);
  EXPECT_EQ(keys, wanted);
}

TEST(TelemetryLine, HasTheSpreadOfLambsCoefficients) {
  const auto spread = [](std::vector<double> coeffs) {
    const TelemetryExtra extra{.lamb_coeffs = std::move(coeffs)};
    return Object::parse(telemetry_line(example(), extra)).at("lamb_coeffs");
  };
  EXPECT_EQ(spread({3, 1, 10}),
            (Object{{"minimum", 1.0}, {"median", 3.0}, {"maximum", 10.0}}));
  EXPECT_EQ(spread({3, 1, 10, 5}),
            (Object{{"minimum", 1.0}, {"median", 4.0}, {"maximum", 10.0}}));
  EXPECT_FALSE(
      Object::parse(telemetry_line(example())).contains("lamb_coeffs"));
}

TEST(TelemetryLine, HasNullForNonFiniteNumbers) {
  EngineReport report = example();
  report.grad_norm = std::numeric_limits<double>::quiet_NaN();
  report.applied = false;
  const Object json = Object::parse(telemetry_line(report));
  EXPECT_TRUE(json.at("grad_norm").is_null());
  EXPECT_EQ(json.at("applied"), false);
  EXPECT_FALSE(json.contains("residual_ratio"));
}

TEST(TelemetryLine, OverlapIsTheShareThatCostNoWaiting) {
  const auto overlap = [](double wait, double busy) {
    optim::StepReport report;
    report.exchange_seconds = wait;
    report.comm_busy_seconds = busy;
    return overlap_of(report);
  };
  EXPECT_EQ(overlap(1, 4), 0.75);
  EXPECT_EQ(overlap(4, 4), 0);
  EXPECT_EQ(overlap(5, 4), 0);  // clocks of two threads
  EXPECT_EQ(overlap(0, 4), 1);
  EXPECT_EQ(overlap(0, 0), 1);
}

TEST(TelemetryLine, OfAnOptimizerAloneSaysNothingOfBackward) {
  const Object json =
      Object::parse(telemetry_line(example(), {.has_backward = false}));
  EXPECT_FALSE(json["seconds"].contains("backward"));
  EXPECT_FALSE(json.contains("late_elements"));
  EXPECT_FALSE(json.contains("waited_for"));
  EXPECT_TRUE(json.contains("memory"));
}

TEST(LineFile, AppendsWholeLines) {
  const test::Folder folder;
  const std::string path = folder.in("lines");
  {
    LineFile file(path);
    EXPECT_TRUE(file.write("one"));
    EXPECT_TRUE(file.write("two"));
  }
  EXPECT_EQ(text_of(path), "one\ntwo\n");
  std::ofstream(path, std::ios::app) << "torn";  // by a process that was killed
  EXPECT_TRUE(LineFile(path).write("three"));
  EXPECT_EQ(text_of(path), "one\ntwo\ntorn\nthree\n");
  EXPECT_TRUE(LineFile(path, LineFile::Mode::kTruncate).write("four"));
  EXPECT_EQ(text_of(path), "four\n");
}

// A pipe that nobody reads is as a full disk.
TEST(LineFile, ThatCannotBeWrittenIsOneWarningAndDroppedLines) {
  const test::Folder folder;
  ASSERT_EQ(::mkfifo(folder.in("pipe").c_str(), 0600), 0);
  for (const auto& [path, what] :
       {std::pair<std::string, std::string>{"/dev/full", "written"},
        {folder.in("pipe"), "written"},
        {folder.in("missing/lines"), "opened"}}) {
    const thinwire::test::KeptLog warnings;
    LineFile file(path);
    std::int64_t dropped = 0;
    for (int i = 0; i < 100; ++i)
      if (!file.write(std::string(4000, 'x'))) ++dropped;
    EXPECT_GT(dropped, 0) << path;
    EXPECT_EQ(file.dropped(), dropped) << path;
    ASSERT_EQ(warnings.lines().size(), 1u) << path;
    EXPECT_NE(warnings.lines()[0].find(path + " cannot be " + what),
              std::string::npos)
        << warnings.lines()[0];
  }
}

TEST(LineFile, IsWrittenOnceItCanBeOpened) {
  const test::Folder folder;
  const std::string path = folder.in("later/lines");
  const thinwire::test::KeptLog warnings;
  LineFile file(path);
  EXPECT_FALSE(file.write("one"));
  std::filesystem::create_directory(folder.in("later"));
  EXPECT_TRUE(file.write("two"));
  EXPECT_EQ(text_of(path), "two\n");
  EXPECT_EQ(warnings.lines().size(), 1u);
}

TEST(Telemetry, WritesEveryFewStepsOnTheRanksThatWereAsked) {
  const test::Folder folder;
  const config::TelemetryConfig first{.path = folder.in("first"), .every = 3};
  EXPECT_FALSE(Telemetry(first, 1).wants_line(3));
  EXPECT_FALSE(std::filesystem::exists(folder.in("first")));
  Telemetry telemetry(first, 0);
  EXPECT_TRUE(telemetry.wants_line(3));
  EXPECT_FALSE(telemetry.wants_line(4));
  EXPECT_FALSE(telemetry.wants_residual_ratio(3));
  telemetry.write(example(), {});
  EXPECT_EQ(text_of(folder.in("first")), telemetry_line(example()) + "\n");

  const config::TelemetryConfig all{
      .path = folder.in("all"), .every_rank = true, .residual_every = 4};
  Telemetry second(all, 2);
  EXPECT_TRUE(second.wants_residual_ratio(8));
  EXPECT_FALSE(second.wants_residual_ratio(9));
  EXPECT_TRUE(std::filesystem::exists(folder.in("all.rank2")));
  EXPECT_FALSE(Telemetry({}, 0).wants_line(1));
}

}  // namespace
}  // namespace thinwire::engine::telemetry_test
