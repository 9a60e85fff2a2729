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
  /// So many of that phase.
  void expect_steps(int count, const Lengths& lengths, Phase phase) {
    for (int i = 0; i < count; ++i)
      EXPECT_EQ(step(lengths), phase) << "step " << step_;
  }
  [[nodiscard]] const Engine& engine() const { return driven_.engine; }

 private:
  Driven driven_;
  std::int64_t step_ = 0;
  Lengths next_{};
  std::uint64_t asked_ = 0;
  std::chrono::steady_clock::time_point now_{};
};

TEST(EngineFallback, WarnsTwentyStepsLaterOnceWhereTheyHaveNotPaid) {
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
TEST(EngineFallback, HoldPutsTheFreezeOffUntilItPays) {
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

}  // namespace
}  // namespace thinwire::engine::test::engine_fallback_test
