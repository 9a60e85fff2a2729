// SPDX-License-Identifier: Apache-2.0
// Times are given, none is measured.
#include "engine/fallback.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/kept_log.h"
#include "support/ranks.h"

namespace thinwire::engine::fallback_test {
namespace {

using config::Fallback;
using optim::Phase;

void add_exact(FallbackWatch& watch, std::size_t count, double whole,
               double step) {
  for (std::size_t i = 0; i < count; ++i)
    EXPECT_FALSE(watch.add(Phase::kExact, {.whole = whole, .step = step}));
}

optim::FreezeRequest request(double exchange_seconds) {
  return {.step = 40, .time_exchange = [=] { return exchange_seconds; }};
}

// One rank's verdict on exact steps of a second, half of it outside of step().
bool ends(Fallback what, double exchange_seconds) {
  bool result = false;
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    FallbackWatch watch(what);
    add_exact(watch, 20, 1, 0.5);
    result = watch.ends_exact_stage(comm, request(exchange_seconds));
  });
  return result;
}

TEST(Fallback, WarnsWhereCompressedStepsWouldNotPayAndOnlyThere) {
  const struct {
    double exchange;
    bool warns;
  } cases[] = {{0.1, false}, {0.4799, false}, {0.4801, true}, {0.6, true}};
  for (const auto& c : cases) {
    const thinwire::test::KeptLog logged;
    EXPECT_TRUE(ends(Fallback::kWarn, c.exchange));
    EXPECT_EQ(logged.lines().size(), c.warns ? 1u : 0u) << c.exchange;
    EXPECT_EQ(logged.count("will not pay here"), logged.lines().size());
  }
}

TEST(Fallback, HoldsWhereItWouldWarn) {
  const thinwire::test::KeptLog logged;
  EXPECT_TRUE(ends(Fallback::kHold, 0.4));
  EXPECT_TRUE(logged.lines().empty());
  EXPECT_FALSE(ends(Fallback::kHold, 0.6));
  ASSERT_EQ(logged.lines().size(), 1u);
  EXPECT_NE(logged.lines()[0].find("step 40 is not the last exact one"),
            std::string::npos)
      << logged.lines()[0];
}

TEST(Fallback, OffMeasuresNothing) {
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    FallbackWatch watch(Fallback::kOff);
    add_exact(watch, 20, 1, 0.5);
    EXPECT_TRUE(watch.ends_exact_stage(
        comm, {.step = 40, .time_exchange = []() -> double {
                 ADD_FAILURE() << "an exchange was timed";
                 return 0;
               }}));
  });
}

TEST(Fallback, SaysNothingOfFewerThanFiveSteps) {
  const thinwire::test::KeptLog logged;
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    FallbackWatch watch(Fallback::kHold);
    add_exact(watch, 4, 1, 0.5);
    EXPECT_TRUE(watch.ends_exact_stage(comm, request(9)));
    add_exact(watch, 1, 1, 0.5);
    EXPECT_FALSE(watch.ends_exact_stage(comm, request(9)));
  });
  EXPECT_EQ(logged.lines().size(), 1u);
}

// Steps of validation and saving are long, the first ones slow.
TEST(Fallback, TakesTheMedianOfTheLastTwentySteps) {
  const thinwire::test::KeptLog logged;
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    FallbackWatch watch(Fallback::kHold);
    add_exact(watch, 50, 9, 8.5);
    add_exact(watch, 11, 1, 0.5);
    add_exact(watch, 9, 7, 6.5);
    EXPECT_TRUE(watch.ends_exact_stage(comm, request(0.4)));
    EXPECT_FALSE(watch.ends_exact_stage(comm, request(0.5)));
  });
}

TEST(Fallback, AllRanksTakeTheSlowestRanksTimes) {
  const thinwire::test::KeptLog logged;
  test::run_ranks("local", 3, [](comm::Communicator& comm) {
    FallbackWatch watch(Fallback::kHold);
    const bool slow = comm.rank() == 2;
    add_exact(watch, 20, 1, 0.5);
    EXPECT_FALSE(watch.ends_exact_stage(comm, request(slow ? 0.6 : 0.1)));
    EXPECT_TRUE(watch.ends_exact_stage(comm, request(slow ? 0.4 : 0.1)));
  });
  EXPECT_EQ(logged.lines().size(), 1u);  // rank 0's
}

// Returns what the watch says after each of `count` compressed steps.
std::size_t verdicts_after_freeze(double whole, std::size_t count, bool& pays) {
  std::size_t verdicts = 0;
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    FallbackWatch watch(Fallback::kWarn);
    add_exact(watch, 20, 1, 0.5);
    EXPECT_TRUE(watch.ends_exact_stage(comm, request(0.1)));
    for (std::size_t i = 0; i < count; ++i)
      if (const auto verdict = watch.add(Phase::kCompressed, {whole, 0.1})) {
        ++verdicts;
        EXPECT_EQ(i, 19u);
        EXPECT_EQ(verdict->exact, 1);
        EXPECT_EQ(verdict->compressed, whole);
        pays = verdict->pays();
      }
  });
  return verdicts;
}

TEST(Fallback, LooksAgainTwentyStepsAfterTheFreezeOnce) {
  bool pays = false;
  EXPECT_EQ(verdicts_after_freeze(0.97, 60, pays), 1u);
  EXPECT_TRUE(pays);
  EXPECT_EQ(verdicts_after_freeze(0.99, 60, pays), 1u);
  EXPECT_FALSE(pays);
  EXPECT_EQ(verdicts_after_freeze(0.99, 19, pays), 0u);
}

TEST(Fallback, AnotherRunsStepsDoNotCount) {
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    FallbackWatch watch(Fallback::kHold);
    add_exact(watch, 20, 1, 0.5);
    watch.forget();
    EXPECT_TRUE(watch.ends_exact_stage(comm, request(9)));
    for (int i = 0; i < 60; ++i)
      EXPECT_FALSE(watch.add(Phase::kCompressed, {9, 9}));
  });
}

}  // namespace
}  // namespace thinwire::engine::fallback_test
