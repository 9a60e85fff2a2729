// SPDX-License-Identifier: Apache-2.0
// The lines of the log that an Engine writes about its steps.
#include "engine/step_notices.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/by_hand.h"
#include "support/kept_log.h"
#include "support/ranks.h"

namespace thinwire::engine::test::step_notices_test {
namespace {

using config::CommBackend;

void run(const Config& config, int ranks, std::int64_t steps,
         std::int64_t overflows_until = 0) {
  comm::run_local_ranks(ranks, [&](comm::Communicator& comm) {
    Sharded driven(comm, config);
    for (std::int64_t t = 1; t <= steps; ++t)
      driven.step({t, 0, t <= overflows_until});
  });
}

TEST(StepNotices, TellOfTheFirstCompressedStepOnce) {
  Config config;
  config.fallback = config::Fallback::kOff;
  config.optimizer = optim::OnebitAdamOptions{.freeze = {.step = 3}};
  const KeptLog log;
  run(config, 2, 8);
  EXPECT_EQ(log.with("from now on ranks exchange").size(), 1u);
  EXPECT_EQ(log.with("step 4: from now on ranks exchange").size(), 1u);
}

TEST(StepNotices, WarnAtTheFirstStepOfARunThatWillCompressNothing) {
  Config config;
  config.fallback = config::Fallback::kOff;
  config.optimizer =
      optim::OnebitAdamOptions{.freeze = {.step = 30, .total_steps = 20}};
  const KeptLog log;
  run(config, 2, 3);
  EXPECT_EQ(log.with("nothing will be compressed").size(), 1u);
}

// The warnings of a run whose learning rate rises in the first 50 steps.
std::vector<std::string> early_freezes(
    const config::OptimizerConfig& optimizer,
    const decltype(config::LearningRateSchedule::shape)& shape =
        config::WarmupAndDecay{.warmup_steps = 50}) {
  Config config;
  config.fallback = config::Fallback::kOff;
  config.optimizer = optimizer;
  config.schedule = {shape};
  const KeptLog log;
  run(config, 2, 2);
  return log.with("the learning rate rises");
}

TEST(StepNotices, WarnOfAFreezeInTheWarmupOfTheLearningRate) {
  using optim::OnebitAdamOptions;
  using optim::ZeroOneAdamOptions;
  const auto lines = early_freezes(OnebitAdamOptions{.freeze = {.step = 40}});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("freeze_step is 40, and the learning rate rises "
                          "until step 50"),
            std::string::npos)
      << lines[0];
  EXPECT_NE(lines[0].find("Set freeze_step to 50 or more"), std::string::npos);
  const auto zero_one =
      early_freezes(ZeroOneAdamOptions{.var_freeze_step = 49});
  ASSERT_EQ(zero_one.size(), 1u);
  EXPECT_NE(zero_one[0].find("Set var_freeze_step to 50"), std::string::npos);
  // The rule by run length, a scheduler of DeepSpeed's, and one of the caller's
  EXPECT_EQ(
      early_freezes(OnebitAdamOptions{.freeze = {.total_steps = 200}}).size(),
      1u);
  EXPECT_EQ(early_freezes(OnebitAdamOptions{.freeze = {.step = 999}},
                          config::WarmupLr{})
                .size(),
            1u);
  EXPECT_EQ(early_freezes(OnebitAdamOptions{.freeze = {.step = 40,
                                                       .lr_warmup_steps = 50}},
                          config::WarmupAndDecay{})
                .size(),
            1u);
}

TEST(StepNotices, AreSilentAboutAFreezeAfterTheWarmup) {
  using optim::OnebitAdamOptions;
  EXPECT_TRUE(early_freezes(OnebitAdamOptions{.freeze = {.step = 50}}).empty());
  EXPECT_TRUE(
      early_freezes(OnebitAdamOptions{.freeze = {.step = optim::kAutoFreeze}})
          .empty());
  EXPECT_TRUE(early_freezes(optim::AdamOptions{}).empty());
  EXPECT_TRUE(early_freezes(OnebitAdamOptions{.freeze = {.step = 40}},
                            config::LrRangeTest{})
                  .empty());
}

TEST(StepNotices, TellOfSkippedStepsTheMoreSeldomTheMoreThereAre) {
  Config config;
  config.precision = {.dtype = DType::kFloat16,
                      .loss_scale = {.initial_scale = 1024, .hysteresis = 1}};
  const KeptLog log;
  run(config, 2, 8, 7);
  const auto lines = log.with("was skipped on all ranks");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_NE(lines[2].find("4 so far: a gradient was not finite"),
            std::string::npos);
  EXPECT_NE(lines[2].find("the loss scale was 128 and is 64 now"),
            std::string::npos);
}

TEST(StepNotices, TellWhereTheTimeWentIfAsked) {
  Config config;
  config.wall_clock_breakdown = true;
  {
    const KeptLog log;
    run(config, 2, 21);  // every 10 steps, as nothing else is said
    EXPECT_EQ(
        log.with("time per step, mean of 10 steps up to 10: backward ").size(),
        1u);
    EXPECT_EQ(log.with("time per step").size(), 2u);
  }
  config.steps_per_print = 3;
  const KeptLog log;
  run(config, 2, 7);
  EXPECT_EQ(log.with("mean of 3 steps up to 6").size(), 1u);
  EXPECT_EQ(log.with("time per step").size(), 2u);
}

TEST(StepNotices, TimesAreMeansOverTheSteps) {
  EngineReport sum;
  sum.steps = 12;
  sum.backward_seconds = 0.4;
  sum.seconds = 0.2;
  sum.exchange_seconds = 0.1;
  sum.comm_busy_seconds = 0.4;
  sum.bytes_sent = 8'000'000;
  EXPECT_EQ(
      time_line(sum, 4),
      "time per step, mean of 4 steps up to 12: backward 100 ms, step() "
      "50 ms, waiting for ranks 25 ms, exchange in flight 100 ms (75 % of "
      "it beside computation), 2 MB sent");
}

TEST(StepNotices, TellWhatMemoryHoldsIfAsked) {
  Config config;
  config.memory_breakdown = true;
  const KeptLog log;
  run(config, 2, 3);
  EXPECT_EQ(log.with("memory of this rank at the start: ").size(), 1u);
  EXPECT_EQ(log.with("memory of this rank after the first step: ").size(), 1u);
  EXPECT_EQ(log.with("memory").size(), 2u);
  MemoryUse use;
  use.now[static_cast<std::size_t>(MemoryKind::kStates)] = 8'000'000;
  EXPECT_NE(memory_line("now", use).find("now: 8 MB"), std::string::npos);
  EXPECT_NE(memory_line("now", use).find("states 8 MB"), std::string::npos);
}

TEST(StepNotices, TellOfATransportThatIsNotTheNamedOne) {
  const auto lines = [](CommBackend backend, int ranks) {
    Config config;
    config.optimizer = optim::OnebitAdamOptions{};
    config.comm.backend = backend;
    const KeptLog log;
    run(config, ranks, 1);
    return log.with("ranks exchange over local");
  };
  EXPECT_TRUE(lines(CommBackend::kUnset, 2).empty());
  EXPECT_TRUE(lines(CommBackend::kNccl, 1).empty());
  const auto nccl = lines(CommBackend::kNccl, 2);
  ASSERT_EQ(nccl.size(), 1u);
  EXPECT_NE(nccl[0].find("comm_backend_name is nccl"), std::string::npos);
  EXPECT_NE(nccl[0].find("tensors are on the CPU"), std::string::npos);
  const auto mpi = lines(CommBackend::kMpi, 2);
  ASSERT_EQ(mpi.size(), 1u);
  EXPECT_NE(mpi[0].find("THINWIRE_COMM"), std::string::npos);
}

}  // namespace
}  // namespace thinwire::engine::test::step_notices_test
