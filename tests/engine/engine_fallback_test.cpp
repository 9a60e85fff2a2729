// SPDX-License-Identifier: Apache-2.0
// What an Engine does where compressed steps pay or do not. Steps last as long
// as the test says, in thousands of seconds: those of an exchange of zeros,
// which are real, are nothing beside them.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "engine/by_hand.h"
#include "engine/engine_impl.h"
#include "engine/fallback.h"
#include "support/kept_log.h"
#include "support/ranks.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::engine::test::engine_fallback_test {
namespace {

using config::Fallback;
using optim::Phase;

constexpr std::int64_t kFreezeStep = 8;

// How long steps last: before the optimizer's, and that.
struct Lengths {
  std::chrono::seconds outside;
  std::chrono::seconds inside;
};
constexpr Lengths kPays{std::chrono::seconds(1000), std::chrono::seconds(9000)};
constexpr Lengths kDoesNotPay{std::chrono::seconds(9900),
                              std::chrono::seconds(100)};

Config config_of(Fallback fallback) {
  Config config;
  config.optimizer = optim::OnebitAdamOptions{.freeze = {.step = kFreezeStep}};
  config.fallback = fallback;
  return config;
}

/// An engine whose clock goes on by what is said, twice in each step.
class TimedRun {
 public:
  TimedRun(comm::Communicator& comm, Fallback fallback)
      : driven_(comm, config_of(fallback)) {
    EngineClock::set(driven_.engine, [this] {
      now_ += (asked_++ % 2 == 0) ? next_.outside : next_.inside;
      return now_;
    });
  }
  TimedRun(const TimedRun&) = delete;
  TimedRun& operator=(const TimedRun&) = delete;

  /// Returns how ranks averaged.
  Phase step(const Lengths& lengths) {
    next_ = lengths;
    return driven_.step({.step = ++step_}).phase;
  }
  /// Makes `count` steps, and expects that phase.
  void expect_steps(int count, const Lengths& lengths, Phase phase) {
    for (int i = 0; i < count; ++i)
      EXPECT_EQ(step(lengths), phase) << "step " << step_;
  }
  [[nodiscard]] const Engine& engine() const { return driven_.engine; }

 private:
  Sharded driven_;
  std::int64_t step_ = 0;
  Lengths next_{};
  std::uint64_t asked_ = 0;
  std::chrono::steady_clock::time_point now_{};
};

TEST(EngineFallback, WarnsOnceAfterTwentyCompressedStepsThatWereNotFaster) {
  const KeptLog log(LogLevel::kWarning);
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    TimedRun run(comm, Fallback::kWarn);
    run.expect_steps(kFreezeStep, kPays, Phase::kExact);
    run.expect_steps(19, kPays, Phase::kCompressed);
    EXPECT_TRUE(log.lines().empty());
    run.expect_steps(30, kPays, Phase::kCompressed);
  });
  ASSERT_EQ(log.lines().size(), 1u);
  EXPECT_NE(log.lines()[0].find("do not pay here"), std::string::npos);
}

// Every step asks again here: a tenth of so few steps is none.
TEST(EngineFallback, HoldDelaysTheFreezeUntilCompressedStepsAreFaster) {
  const KeptLog log(LogLevel::kWarning);
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    TimedRun run(comm, Fallback::kHold);
    run.expect_steps(kFreezeStep + 4, kDoesNotPay, Phase::kExact);
    EXPECT_EQ(run.engine().state_dict().integer("freeze_held_until"),
              kFreezeStep + 5);
    // The median of 11 steps and 12, of 20 at most.
    int more = 0;
    while (run.step(kPays) == Phase::kExact) ASSERT_LT(++more, 25);
    EXPECT_GE(more, 8);
  });
  ASSERT_GE(log.lines().size(), 5u);
  EXPECT_NE(log.lines()[0].find("step 8 is not the last exact one"),
            std::string::npos)
      << log.lines()[0];
}

// ---- verdicts, of times that are given

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

TEST(Fallback, WarnsOnlyIfCompressedStepsWouldNotBeFaster) {
  const struct {
    double exchange;
    bool warns;
    bool gains;
  } cases[] = {{0.1, false, true},
               {0.4799, false, true},
               {0.4801, true, true},
               {0.6, true, false}};
  for (const auto& c : cases) {
    const KeptLog logged;
    EXPECT_TRUE(ends(Fallback::kWarn, c.exchange));
    EXPECT_EQ(logged.lines().size(), c.warns ? 1u : 0u) << c.exchange;
    EXPECT_EQ(logged.count("will not pay here"), logged.lines().size());
    EXPECT_EQ(logged.count("a gain below 2 % does not count"),
              c.warns && c.gains ? 1u : 0u);
    EXPECT_EQ(logged.count(R"("thinwire": {"fallback": "hold"})"),
              logged.lines().size());
  }
}

TEST(Fallback, HoldsWhereItWouldWarn) {
  const KeptLog logged;
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
  const KeptLog logged;
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
  const KeptLog logged;
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
  const KeptLog logged;
  run_ranks("local", 3, [](comm::Communicator& comm) {
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
}  // namespace thinwire::engine::test::engine_fallback_test
