// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/log.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/errors.h"
#include "support/kept_log.h"

namespace thinwire::log_test {
namespace {

using Lines = std::vector<std::pair<LogLevel, std::string>>;

TEST(Log, IsDroppedWithoutASink) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  log(LogLevel::kWarning, "unheard");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Log, GivesLevelAndTextToTheSink) {
  Lines lines;
  set_log_sink([&](LogLevel level, std::string_view text) {
    lines.emplace_back(level, text);
  });
  log(LogLevel::kInfo, "one");
  log(LogLevel::kWarning, "two");
  log(LogLevel::kDebug, "");
  set_log_sink({});
  EXPECT_EQ(lines, (Lines{{LogLevel::kInfo, "one"},
                          {LogLevel::kWarning, "two"},
                          {LogLevel::kDebug, ""}}));
}

TEST(Log, UsesOnlyTheLatestSink) {
  auto first = std::make_shared<std::string>();
  set_log_sink([first](LogLevel, std::string_view text) { *first += text; });
  log(LogLevel::kInfo, "a");
  {
    const test::KeptLog second;
    EXPECT_EQ(first.use_count(), 1) << "the sink before is still held";
    log(LogLevel::kInfo, "b");
    EXPECT_EQ(second.lines(), std::vector<std::string>{"b"});
  }
  log(LogLevel::kInfo, "c");
  EXPECT_EQ(*first, "a");
}

TEST(Log, NamesItsLevels) {
  EXPECT_EQ(to_string(LogLevel::kDebug), "debug");
  EXPECT_EQ(to_string(LogLevel::kInfo), "info");
  EXPECT_EQ(to_string(LogLevel::kWarning), "warning");
}

TEST(Log, PassesLinesOfManyThreadsOneAtATime) {
  constexpr std::size_t kThreads = 8;
  constexpr std::size_t kLines = 500;
  std::vector<std::size_t> next(kThreads);  // per thread: the line to come
  bool is_called = false;                   // not atomic: one at a time
  bool overlaps = false;
  bool in_order = true;
  set_log_sink([&](LogLevel, std::string_view text) {
    overlaps = overlaps || is_called;
    is_called = true;
    const std::string line(text);
    const std::size_t space = line.find(' ');
    std::size_t& expected = next[std::stoul(line.substr(0, space))];
    in_order = in_order && std::stoul(line.substr(space)) == expected;
    ++expected;
    is_called = false;
  });
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < kThreads; ++t)
      threads.emplace_back([t] {
        for (std::size_t i = 0; i < kLines; ++i)
          log(LogLevel::kInfo, std::to_string(t) + ' ' + std::to_string(i));
      });
  }
  set_log_sink({});
  EXPECT_FALSE(overlaps);
  EXPECT_TRUE(in_order);
  EXPECT_EQ(next, std::vector<std::size_t>(kThreads, kLines));
}

TEST(Log, MayBeGivenASinkWhileOthersLog) {
  std::jthread writer([](const std::stop_token& stop) {
    while (!stop.stop_requested()) log(LogLevel::kInfo, "line");
  });
  std::size_t lines = 0;
  while (lines == 0) {
    std::size_t now = 0;
    set_log_sink([&now](LogLevel, std::string_view) { ++now; });
    std::this_thread::yield();
    set_log_sink({});
    lines += now;  // of a sink that nobody calls any more
  }
  EXPECT_GT(lines, 0u);
}

TEST(Log, SurvivesASinkThatThrows) {
  int calls = 0;
  set_log_sink([&](LogLevel, std::string_view) {
    if (++calls == 1) throw std::runtime_error("disk full");
  });
  log(LogLevel::kInfo, "lost");
  log(LogLevel::kInfo, "taken");
  set_log_sink({});
  EXPECT_EQ(calls, 2);
}

TEST(Log, DropsWhatASinkLogsAndRefusesASinkFromASink) {
  int calls = 0;
  set_log_sink([&](LogLevel, std::string_view) {
    ++calls;
    log(LogLevel::kInfo, "about logging");
    test::expect_error(ErrorCode::kFailedPrecondition, {"inside a sink"},
                       [] { set_log_sink({}); });
  });
  log(LogLevel::kInfo, "one");
  log(LogLevel::kInfo, "two");
  set_log_sink({});
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace thinwire::log_test
