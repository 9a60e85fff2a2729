// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "examples/train_gpt/units.h"

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

// The first hundred of 1000 steps took 1 s each; or one step took 40 s.
TEST(Progress, SpeedAndTimeLeftAreOfTheLastTenSeconds) {
  const auto text_of = [](std::int64_t steps, std::vector<double> seconds) {
    std::ostringstream out;
    Progress progress(out, Progress::Style::kLines, "adam", steps);
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      StepRow now = row(static_cast<std::int64_t>(i) + 1);
      now.seconds = seconds[i];
      progress.step(now);
    }
    return out.str();
  };
  std::vector<double> faster(1000, 0.1);
  std::fill_n(faster.begin(), 100, 1.0);
  const std::string many = text_of(1000, faster), few = text_of(4, {5, 40});
  for (const auto& [text, line] :
       {std::pair{many,
                  "100/1000  loss 2.500  2.05k tokens/s  58.3 KB/step  "
                  "exact  15:00 left\n"},
        std::pair{many,
                  "300/1000  loss 2.500  20.5k tokens/s  58.3 KB/step  "
                  "exact  1:10 left\n"},
        std::pair{few,
                  "2/4  loss 2.500  51 tokens/s  58.3 KB/step  exact  "
                  "1:20 left\n"}})
    EXPECT_NE(text.find(line), std::string::npos) << text;
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

TEST(Units, HaveThreeDigits) {
  for (const auto& [bytes, text] :
       {std::pair{0.0, "0 B"}, std::pair{999.0, "999 B"},
        std::pair{1000.0, "1.00 KB"}, std::pair{58'300.0, "58.3 KB"},
        std::pair{999'499.0, "999 KB"}, std::pair{999'500.0, "1.00 MB"},
        std::pair{5'595'648.0, "5.60 MB"}, std::pair{3e15, "3000 TB"}})
    EXPECT_EQ(format_bytes(bytes), text);
  for (const auto& [seconds, text] :
       {std::pair{0.0, "0 s"}, std::pair{59.4, "59 s"}, std::pair{59.5, "1:00"},
        std::pair{187.0, "3:07"}, std::pair{3723.0, "1:02:03"}})
    EXPECT_EQ(format_duration(seconds), text);
  for (const auto& [count, text] :
       {std::pair{950.0, "950"}, std::pair{20'100.0, "20.1k"},
        std::pair{932'608.0, "933k"}})
    EXPECT_EQ(format_count(count), text);
}

}  // namespace
}  // namespace thinwire::train_gpt::progress_test
