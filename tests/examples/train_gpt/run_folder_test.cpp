// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/run_folder.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include "support/errors.h"
#include "support/folder.h"

namespace thinwire::train_gpt::run_folder_test {
namespace {

namespace fs = std::filesystem;
using test::expect_error;

Json summary() {
  Json summary = summary_of(
      {.bytes_sent = 1100, .seconds = 0.5, .tokens = 2048, .val_loss = 1.625});
  summary["optimizer"] = "onebit_adam";
  summary["semantics"] = "corrected";
  summary["ranks"] = 4;
  summary["steps"] = 2;
  summary["params"] = 932'608;
  summary["params_checksum"] = "00ff00ff00ff00ff";
  return summary;
}

StepRow row(std::int64_t step) {
  return {.step = step,
          .loss = 1.0 / static_cast<double>(step),
          .phase = "exact",
          .tokens = 10,
          .bytes_sent = 100,
          .seconds = 0.125};
}

class RunFolder : public ::testing::Test {
 protected:
  std::string text(const char* name) const {
    std::ifstream file(folder / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write_run() const {
    RunWriter writer(folder);
    writer.begin(config_text({{"optimizer", "onebit_adam"}, {"steps", "2"}},
                             {"a.txt"}, R"({"fp16": {"enabled": true}})"));
    StepRow first = row(1);
    first.more["lr"] = 0.001;
    first.more["seconds"] = 7;  // the row's own wins
    writer.add(first);
    StepRow second = row(2);
    second.loss = std::numeric_limits<double>::quiet_NaN();
    second.phase = "compressed";
    second.wait_seconds = 0.0625;
    writer.add(second);
    writer.add(ValidationRow{2, 1.625});
    writer.finish(summary());
  }

  const test::Folder parent{};
  const fs::path folder = parent.in("run");
};

TEST_F(RunFolder, HasTheFieldsThatOthersRelyOn) {
  write_run();
  EXPECT_EQ(text("metrics.jsonl"),
            "{\"step\":1,\"loss\":1.0,\"phase\":\"exact\",\"tokens\":10,"
            "\"bytes_sent\":100,\"seconds\":0.125,\"wait_seconds\":0.0,"
            "\"update_seconds\":0.0,\"lr\":0.001}\n"
            "{\"step\":2,\"loss\":null,\"phase\":\"compressed\",\"tokens\":10,"
            "\"bytes_sent\":100,\"seconds\":0.125,\"wait_seconds\":0.0625,"
            "\"update_seconds\":0.0}\n"
            "{\"step\":2,\"val_loss\":1.625}\n");
  const Json written = Json::parse(text("summary.json"));
  EXPECT_EQ(written, summary());
  EXPECT_EQ(written.at("tokens_per_second"), 4096);
  EXPECT_EQ(written.at("final_val_loss"), 1.625);
  EXPECT_NEAR(written.at("final_val_bits_per_byte"), 1.625 / std::log(2),
              1e-12);
  EXPECT_EQ(text("config.json"),
            "{\n"
            "  \"fp16\": {\n"
            "    \"enabled\": true\n"
            "  },\n"
            "  \"train_gpt\": {\n"
            "    \"data\": [\n"
            "      \"a.txt\"\n"
            "    ],\n"
            "    \"optimizer\": \"onebit_adam\",\n"
            "    \"steps\": 2\n"
            "  }\n"
            "}\n");
}

TEST_F(RunFolder, LosesItsResultsWhenAnotherRunBegins) {
  write_run();
  write_file(folder / "report.html", "");
  RunWriter(folder).begin("{}");
  EXPECT_FALSE(fs::exists(folder / "summary.json"));
  EXPECT_FALSE(fs::exists(folder / "report.html"));
  EXPECT_EQ(text("metrics.jsonl"), "");
}

TEST_F(RunFolder, OfAResumedRunKeepsEarlierLines) {
  std::string before;
  {
    RunWriter writer(folder);
    writer.begin("{}");
    for (const std::int64_t step : {1, 2, 3}) {
      StepRow its = row(step);
      its.more["overlap"] = 0.5;  // lines stay as they are
      writer.add(its);
      writer.add(ValidationRow{step, 4.0 - static_cast<double>(step)});
      if (step == 2) before = text("metrics.jsonl");
    }
  }
  std::ofstream(folder / "metrics.jsonl", std::ios::app) << R"({"step":4,"lo)";
  RunWriter writer(folder);
  EXPECT_NE(text("metrics.jsonl").find("\"step\":4"), std::string::npos)
      << "nothing changes before it is loaded";
  writer.resume("{}", 2, {.bytes_sent = 200, .seconds = 0.25, .tokens = 20});
  EXPECT_EQ(text("metrics.jsonl"), before);
  ASSERT_TRUE(writer.newest());
  EXPECT_EQ(writer.newest()->step, 2);
  writer.add(row(3));
  EXPECT_EQ(writer.totals().bytes_sent, 300u);
  EXPECT_EQ(writer.totals().seconds, 0.375);
  EXPECT_EQ(writer.totals().val_loss, 2.0);
}

TEST_F(RunFolder, OfARunResumedElsewhereHasItsTotals) {
  RunWriter writer(folder);
  writer.resume(
      "{}", 100,
      {.bytes_sent = 5000, .seconds = 10, .tokens = 1000, .val_loss = 1.5});
  EXPECT_EQ(text("metrics.jsonl"), "");
  writer.add(row(101));
  EXPECT_EQ(writer.totals().bytes_sent, 5100u);
  EXPECT_EQ(writer.totals().seconds, 10.125);
  EXPECT_EQ(writer.totals().tokens, 1010);
  EXPECT_EQ(writer.totals().val_loss, 1.5);
}

// By the allocator's own count of bytes in use: a long run may not grow.
TEST_F(RunFolder, OfALongRunHoldsNoRowsInMemory) {
  RunWriter writer(folder);
  writer.begin("{}");
  const auto write_rows = [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t step = from; step < to; ++step) {
      writer.add(row(step));
      writer.add(ValidationRow{step, 2.0});
    }
  };
  write_rows(1, 100);
  const std::size_t before = mallinfo2().uordblks;
  write_rows(100, 5100);
  EXPECT_LT(mallinfo2().uordblks, before + 5000);
  EXPECT_EQ(writer.newest()->step, 5099);
}

TEST_F(RunFolder, OfAResumedRunNamesDamage) {
  RunWriter writer(folder);
  write_file(folder / "metrics.jsonl", "{\"step\":1,\"lo\n{}\n");
  expect_error(ErrorCode::kUnavailable,
               {"metrics.jsonl", "not what train_gpt writes"},
               [&] { writer.resume("{}", 1, {}); });
}

TEST_F(RunFolder, TakesOneRunAtATime) {
  {
    RunWriter writer(folder);
    writer.begin("{}");
    writer.add(ValidationRow{2, 1.625});
    const std::string before = text("metrics.jsonl");
    expect_error(
        ErrorCode::kUnavailable,
        {"--out", "another run", folder.string(), std::to_string(::getpid())},
        [&] { const RunWriter second(folder); });
    EXPECT_EQ(text("metrics.jsonl"), before);
  }
  const RunWriter after_its_end(folder);
}

TEST_F(RunFolder, IsNotInTheWayOnceItsProcessIsDead) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const RunWriter writer(folder);
    ::_exit(fs::exists(folder / ".lock") ? 7 : 8);  // no destructor runs
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_EQ(WEXITSTATUS(status), 7);
  const RunWriter writer(folder);
}

TEST_F(RunFolder, ThatCannotBeMadeIsNamed) {
  fs::create_directories(folder);
  write_file(folder / "file", "");
  expect_error(ErrorCode::kUnavailable, {"file/run", "cannot be made"},
               [&] { const RunWriter writer(folder / "file" / "run"); });
}

}  // namespace
}  // namespace thinwire::train_gpt::run_folder_test
