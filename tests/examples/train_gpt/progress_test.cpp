// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "examples/train_gpt/report/units.h"

namespace thinwire::train_gpt::progress_test {
namespace {

StepRow row(std::int64_t step) {
  return {.step = step,
          .loss = 2.5,
          .phase = "exact",
          .tokens = 2048,
          .bytes_sent = 58'300,
          .seconds = 0.1};
}

std::string run(Progress::Style style, std::int64_t steps) {
  std::ostringstream out;
  Progress progress(out, style, "adam", steps);
  for (std::int64_t step = 1; step <= steps; ++step) {
    if (step == steps / 2) progress.validation({step, 2.25});
    progress.step(row(step));
  }
  progress.finish();
  return out.str();
}

TEST(Progress, WithoutATerminalThereIsALineAtEveryTenth) {
  const std::string text = run(Progress::Style::kLines, 500);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_NE(text.find("adam  50/500  loss 2.500  20.5k tokens/s  58.3 KB/step  "
                      "exact  45 s left\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("250/500  loss 2.500  val 2.250  "), std::string::npos);
}

// The first steps took 1 s, those of another stage take 0.1 s.
TEST(Progress, SpeedAndTimeLeftAreOfTheLastTenSeconds) {
  std::ostringstream out;
  Progress progress(out, Progress::Style::kLines, "adam", 1000);
  for (std::int64_t step = 1; step <= 1000; ++step) {
    StepRow now = row(step);
    now.seconds = step <= 100 ? 1 : 0.1;
    progress.step(now);
  }
  const std::string text = out.str();
  EXPECT_NE(text.find("100/1000  loss 2.500  2.05k tokens/s  58.3 KB/step  "
                      "exact  15:00 left\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("300/1000  loss 2.500  20.5k tokens/s  58.3 KB/step  "
                      "exact  1:10 left\n"),
            std::string::npos)
      << text;
}

TEST(Progress, AStepThatTakesLongIsTakenAlone) {
  std::ostringstream out;
  Progress progress(out, Progress::Style::kLines, "adam", 4);
  for (std::int64_t step = 1; step <= 2; ++step) {
    StepRow now = row(step);
    now.seconds = step == 1 ? 5 : 40;
    progress.step(now);
  }
  EXPECT_NE(out.str().find("2/4  loss 2.500  51 tokens/s  58.3 KB/step  "
                           "exact  1:20 left\n"),
            std::string::npos)
      << out.str();
}

TEST(Progress, WithoutATerminalThereIsALineEvery30Seconds) {
  double now = 0;
  for (const std::int64_t steps_per_line : {0, 500}) {
    std::ostringstream out;
    Progress progress(out, Progress::Style::kLines, "adam", 1000,
                      steps_per_line, [&] { return now; });
    for (std::int64_t step = 1; step <= 90; ++step) {
      now += 1;
      progress.step(row(step));
    }
    const std::string text = out.str();
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3) << text;
    for (const char* due : {"  30/1000 ", "  60/1000 ", "  90/1000 "})
      EXPECT_NE(text.find(due), std::string::npos) << text;
  }
}

TEST(Progress, ShortRunsHaveALineAStepAtMost) {
  const std::string text = run(Progress::Style::kLines, 3);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
}

TEST(Progress, OnATerminalOneLineIsDrawnAgain) {
  const std::string text = run(Progress::Style::kBar, 40);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 40);
  EXPECT_NE(text.find("██████████░░░░░░░░░░ 20/40"), std::string::npos);
  EXPECT_NE(text.find("████████████████████ 40/40"), std::string::npos);
}

TEST(Progress, QuietPrintsNothing) {
  EXPECT_EQ(run(Progress::Style::kNone, 20), "");
  EXPECT_EQ(Progress::style_for_stderr(true), Progress::Style::kNone);
}

TEST(Units, BytesHaveThreeDigitsAndAUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1000), "1.00 KB");
  EXPECT_EQ(format_bytes(58'300), "58.3 KB");
  EXPECT_EQ(format_bytes(999'499), "999 KB");
  EXPECT_EQ(format_bytes(999'500), "1.00 MB");
  EXPECT_EQ(format_bytes(5'595'648), "5.60 MB");
  EXPECT_EQ(format_bytes(3e15), "3000 TB");
}

TEST(Units, DurationsGrowWithTheirSize) {
  EXPECT_EQ(format_duration(0), "0 s");
  EXPECT_EQ(format_duration(59.4), "59 s");
  EXPECT_EQ(format_duration(59.5), "1:00");
  EXPECT_EQ(format_duration(187), "3:07");
  EXPECT_EQ(format_duration(3723), "1:02:03");
}

TEST(Units, CountsHaveThreeDigits) {
  EXPECT_EQ(format_count(950), "950");
  EXPECT_EQ(format_count(20'100), "20.1k");
  EXPECT_EQ(format_count(932'608), "933k");
}

}  // namespace
}  // namespace thinwire::train_gpt::progress_test
