// SPDX-License-Identifier: Apache-2.0
#include "exchange/gradient_window.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "support/errors.h"

namespace thinwire::exchange::gradient_window_test {
namespace {

using test::expect_error;
using Lines = std::vector<std::string>;

constexpr auto kPrecondition = ErrorCode::kFailedPrecondition;

/// Writes down what it is given.
struct Recorder final : GradientSink {
  void store(const GradientPart& part) override {
    lines.push_back(fmt::format(
        "{} {}{}+{}{}", part.is_first ? "set" : "add",
        part.values.empty() ? "nothing at " : "", part.range.offset,
        part.range.size,
        part.values.empty() ? ""
                            : fmt::format(" {}", part.values.as<float>()[0])));
  }
  bool send(std::size_t bucket) override {
    lines.push_back(fmt::format("send {}", bucket));
    return leaves_this_rank;
  }
  // What has been written down since the last call.
  Lines take() { return std::exchange(lines, {}); }

  Lines lines;
  bool leaves_this_rank = true;
};

/// Three parameters and an empty one; "b" lies in all three buckets.
struct Recorded {
  ParameterLayout layout =
      ParameterLayout::of({{"a", {2}}, {"b", {5}}, {"none", {0}}, {"c", {1}}});
  Recorder sink;
  GradientWindow window{layout, {{0, 3}, {3, 3}, {6, 2}}, sink};

  void collect(std::size_t parameter) {
    static constexpr std::array<float, 5> kValues{1, 2, 3, 4, 5};
    window.collect(parameter, ConstView(std::span(kValues).first(
                                  layout.parameters()[parameter].size)));
  }
};

TEST(GradientWindow, SendsBucketsLastFirstAsTheyFill) {
  Recorded run;
  run.window.begin({}, true);
  run.collect(0);
  EXPECT_EQ(run.sink.take(), (Lines{"set 0+2 1"}));
  run.collect(3);
  run.collect(2);
  EXPECT_EQ(run.sink.take(), (Lines{"set 7+1 1"}));
  // Each part may be sent before the next one is stored.
  run.collect(1);
  EXPECT_EQ(run.sink.take(), (Lines{"set 6+1 5", "send 2", "set 3+3 2",
                                    "send 1", "set 2+1 1", "send 0"}));
  run.window.end();
  EXPECT_EQ(run.sink.take(), Lines{});
  EXPECT_EQ(run.window.late().elements, 0u);
  EXPECT_EQ(run.window.late().parameter, -1);
}

TEST(GradientWindow, WhatDoesNotComeCountsAsZeroAndIsLate) {
  Recorded run;
  run.window.begin({}, true);
  run.collect(3);
  run.collect(0);
  run.sink.take();
  run.window.end();
  EXPECT_EQ(run.sink.take(),
            (Lines{"set nothing at 6+1", "send 2", "set nothing at 3+3",
                   "send 1", "set nothing at 2+1", "send 0"}));
  EXPECT_EQ(run.window.late().elements, 8u);
  EXPECT_EQ(run.window.late().parameter, 1);
  EXPECT_TRUE(run.window.has_gradient(0));
  EXPECT_FALSE(run.window.has_gradient(1));
}

TEST(GradientWindow, LaterBackwardsAreAddedAndTheLastOneSends) {
  Recorded run;
  run.window.begin({.is_first = true, .is_last = false}, false);
  run.collect(3);
  run.collect(0);
  run.window.end();
  EXPECT_EQ(run.sink.take(),
            (Lines{"set 7+1 1", "set 0+2 1", "set nothing at 6+1",
                   "set nothing at 3+3", "set nothing at 2+1"}));
  EXPECT_EQ(run.window.late().elements, 0u);
  EXPECT_FALSE(run.window.is_complete());

  run.window.begin({.is_first = false, .is_last = true}, true);
  EXPECT_FALSE(run.window.is_ready(0));
  EXPECT_TRUE(run.window.has_gradient(0));
  run.collect(1);
  run.collect(3);
  EXPECT_EQ(run.sink.take(), (Lines{"add 6+1 5", "add 3+3 2", "add 2+1 1",
                                    "add 7+1 1", "send 2", "send 1"}));
  run.window.end();
  EXPECT_EQ(run.sink.take(), (Lines{"add nothing at 0+2", "send 0"}));
  EXPECT_EQ(run.window.backwards(), 2);
  EXPECT_TRUE(run.window.is_complete());
}

TEST(GradientWindow, RefusesWhatIsOutOfOrder) {
  Recorded run;
  GradientWindow& window = run.window;
  const auto refused = [](std::string_view text, auto&& call) {
    expect_error(kPrecondition, {text}, call);
  };
  const Backward later{.is_first = false, .is_last = false};
  refused("first backward since step() is missing",
          [&] { window.begin(later, false); });
  refused("outside of a backward", [&] { run.collect(0); });
  refused("there was no begin_backward()", [&] { window.end(); });
  window.begin({.is_first = true, .is_last = false}, false);
  refused("inside another backward", [&] { window.begin(later, false); });
  run.collect(0);
  refused("'a' has come before", [&] { run.collect(0); });
  expect_error(ErrorCode::kInvalidArgument, {"index", "below 4", "4"},
               [&] { window.collect(4, {}); });
  window.end();
  refused("there was a first backward",
          [&] { window.begin({.is_last = false}, false); });
  window.close();
  refused("the last backward has been", [&] { window.begin(later, false); });
  window.restart();
  EXPECT_EQ(window.backwards(), 0);
  EXPECT_FALSE(window.has_gradient(0));
  window.close();
  EXPECT_FALSE(window.is_complete());  // there is nothing to close
  EXPECT_NO_THROW(window.begin({}, true));
}

TEST(GradientWindow, IsCancelledUnlessOtherRanksHaveSeenIt) {
  for (const bool leaves : {false, true}) {
    Recorded run;
    run.sink.leaves_this_rank = leaves;
    run.window.begin({}, true);
    run.collect(3);
    run.collect(1);
    EXPECT_EQ(run.window.has_sent(), leaves);
    EXPECT_EQ(run.window.cancel(), !leaves);
    EXPECT_FALSE(run.window.in_backward());
    EXPECT_EQ(run.window.backwards(), 0);
    if (leaves)
      expect_error(ErrorCode::kFailedPrecondition, {"only be destroyed"},
                   [&] { run.window.begin({}, true); });
    else
      EXPECT_NO_THROW(run.window.begin({}, true));
  }
}

TEST(GradientWindow, WholeBucketsAreSentOnce) {
  Recorded run;
  const auto refused = [&](Range range) {
    expect_error(
        ErrorCode::kInvalidArgument,
        {"range", fmt::format("{} of size {}", range.offset, range.size)},
        [&] { run.window.send(range); });
  };
  refused({0, 2});
  refused({1, 5});
  refused({6, 3});
  EXPECT_EQ(run.sink.take(), Lines{});
  run.window.send({0, 6});
  EXPECT_EQ(run.sink.take(), (Lines{"send 1", "send 0"}));
  refused({3, 5});
  run.window.send_rest();
  run.window.send_rest();
  EXPECT_EQ(run.sink.take(), Lines{"send 2"});
  run.window.restart();
  EXPECT_NO_THROW(run.window.send({3, 3}));
}

}  // namespace
}  // namespace thinwire::exchange::gradient_window_test
