// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/gradient_window.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/require.h"
#include "support/errors.h"

namespace thinwire::exchange::gradient_window_test {
namespace {

using test::expect_error;
using test::expect_invalid;
using Lines = std::vector<std::string>;

constexpr auto kPrecondition = ErrorCode::kFailedPrecondition;

/// Records the calls that it receives.
struct Recorder final : GradientSink {
  bool begin(Backward which) override {
    if (refuses) throw Error(kPrecondition, "the sink refuses");
    return which.is_last;
  }
  void check(std::size_t /*parameter*/, ConstView gradient) const override {
    require(gradient.dtype() == DType::kFloat32, "gradient", "float32",
            to_string(gradient.dtype()));
  }
  void end() override { ++ended; }
  void clear() override { ++cleared; }
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
  // Returns the lines since the last call.
  Lines take() { return std::exchange(lines, {}); }

  Lines lines;
  bool leaves_this_rank = true;
  bool refuses = false;
  int ended = 0;
  int cleared = 0;
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

TEST(GradientWindow, SendsFullBucketsFromTheLastOne) {
  Recorded run;
  run.window.begin({});
  run.collect(0);
  EXPECT_EQ(run.sink.take(), (Lines{"set 0+2 1"}));
  run.collect(3);
  run.collect(2);
  EXPECT_EQ(run.sink.take(), (Lines{"set 7+1 1"}));
  // Each part may be sent before the next one is stored.
  run.collect(1);
  EXPECT_EQ(run.sink.take(), (Lines{"set 6+1 5", "send 2", "set 3+3 2",
                                    "send 1", "set 2+1 1", "send 0"}));
  EXPECT_EQ(run.sink.ended, 0);
  run.window.end();
  EXPECT_EQ(run.sink.ended, 1);
  EXPECT_EQ(run.sink.take(), Lines{});
  EXPECT_EQ(run.window.late().elements, 0u);
  EXPECT_EQ(run.window.late().parameter, -1);
}

TEST(GradientWindow, MissingGradientsCountAsZeroAndAreLate) {
  Recorded run;
  run.window.begin({});
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
  run.window.begin({.is_first = true, .is_last = false});
  run.collect(3);
  run.collect(0);
  run.window.end();
  EXPECT_EQ(run.sink.take(),
            (Lines{"set 7+1 1", "set 0+2 1", "set nothing at 6+1",
                   "set nothing at 3+3", "set nothing at 2+1"}));
  EXPECT_EQ(run.window.late().elements, 0u);
  EXPECT_FALSE(run.window.is_complete());

  run.window.begin({.is_first = false, .is_last = true});
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

TEST(GradientWindow, RefusesCallsOutOfOrder) {
  Recorded run;
  GradientWindow& window = run.window;
  const auto refused = [](std::string_view text, auto&& call) {
    expect_error(kPrecondition, {text}, call);
  };
  const Backward later{.is_first = false, .is_last = false};
  refused("first backward since step() is missing",
          [&] { window.begin(later); });
  refused("outside of a backward", [&] { run.collect(0); });
  refused("there was no begin_backward()", [&] { window.end(); });
  window.begin({.is_first = true, .is_last = false});
  refused("inside another backward", [&] { window.begin(later); });
  run.collect(0);
  refused("'a' has come before", [&] { run.collect(0); });
  expect_invalid({"index", "below 4", "4"}, [&] { window.collect(4, {}); });
  window.end();
  refused("there was a first backward",
          [&] { window.begin({.is_last = false}); });
  window.close();
  refused("the last backward has been", [&] { window.begin(later); });
  window.restart();
  EXPECT_EQ(window.backwards(), 0);
  EXPECT_FALSE(window.has_gradient(0));
  window.close();
  EXPECT_FALSE(window.is_complete());  // there is nothing to close
  EXPECT_NO_THROW(window.begin({}));
}

TEST(GradientWindow, ASinkRefusesBeforeAnythingChanges) {
  Recorded run;
  run.sink.refuses = true;
  expect_error(kPrecondition, {"the sink refuses"},
               [&] { run.window.begin({}); });
  EXPECT_EQ(run.window.backwards(), 0);
  EXPECT_FALSE(run.window.in_backward());
  run.sink.refuses = false;
  run.window.begin({});
  const std::array<double, 2> wide{1, 2};
  const ConstView values(wide.data(), wide.size(), DType::kFloat64);
  expect_invalid({"gradient", "float32", "float64"},
                 [&] { run.window.collect(0, values); });
  EXPECT_FALSE(run.window.is_ready(0));
  EXPECT_FALSE(run.window.has_gradient(0));
  run.collect(0);
  EXPECT_EQ(run.sink.take(), Lines{"set 0+2 1"});
}

TEST(GradientWindow, CollectsAllGradientsInOneBackward) {
  Recorded run;
  const std::array<float, 8> all{1, 2, 3, 4, 5, 6, 7, 8};
  run.window.collect_all(std::span(all));
  EXPECT_EQ(run.sink.take(),
            (Lines{"set 7+1 8", "set 6+1 7", "send 2", "set 3+3 4", "send 1",
                   "set 2+1 3", "set 0+2 1", "send 0"}));
  EXPECT_TRUE(run.window.awaits_step());
  EXPECT_TRUE(run.window.is_complete());
  EXPECT_TRUE(run.window.has_gradient(2));
  EXPECT_EQ(run.window.late().elements, 0u);
  expect_error(kPrecondition, {"the last backward has been"},
               [&] { run.window.collect_all(std::span(all)); });
}

TEST(GradientWindow, MayBeCancelledUnlessOtherRanksHaveSeenIt) {
  for (const bool leaves : {false, true}) {
    Recorded run;
    run.sink.leaves_this_rank = leaves;
    run.window.begin({});
    run.collect(3);
    run.collect(1);
    EXPECT_EQ(run.window.has_sent(), leaves);
    EXPECT_EQ(run.window.cancel(), !leaves);
    EXPECT_EQ(run.sink.cleared, leaves ? 0 : 1);
    EXPECT_TRUE(run.window.cancel());  // there is no backward
    EXPECT_FALSE(run.window.in_backward());
    EXPECT_EQ(run.window.backwards(), 0);
    if (leaves)
      expect_error(ErrorCode::kFailedPrecondition, {"only be destroyed"},
                   [&] { run.window.begin({}); });
    else
      EXPECT_NO_THROW(run.window.begin({}));
  }
}

TEST(GradientWindow, WholeBucketsAreSentOnce) {
  Recorded run;
  const auto refused = [&](Range range) {
    expect_invalid(
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
