// SPDX-License-Identifier: Apache-2.0
// The lines that appear once in a run, and its traffic.
#include "engine/run_notices.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace thinwire::engine::run_notices_test {
namespace {

using optim::Phase;
using optim::StepReport;

config::Config onebit(std::optional<std::int64_t> total_steps = {}) {
  config::Config config;
  config.optimizer =
      optim::OnebitAdamOptions{.freeze = {.total_steps = total_steps}};
  return config;
}

std::string text_of(const RunNotices::Notices& notices) {
  std::string all;
  for (const auto& [kind, text] : notices) all += text + "\n";
  return all;
}

/// A rank of a run, and all that it was told.
struct RankOfRun {
  explicit RankOfRun(const config::Config& config, int ranks = 2, int rank = 0)
      : notices(config, rank, ranks, "Pass each rank its own") {}

  RunNotices::Notices step(const StepReport& report,
                           std::optional<std::int64_t> freeze_step = 1000) {
    ++steps;
    return notices.after_step(report,
                              {.steps = steps, .freeze_step = freeze_step});
  }
  std::string text(const StepReport& report,
                   std::optional<std::int64_t> freeze_step = 1000) {
    return text_of(step(report, freeze_step));
  }

  RunNotices notices;
  std::int64_t steps = 0;
};

TEST(RunNotices, AnnounceOnceThatCompressionBeginsWithBytes) {
  RankOfRun run(onebit());
  EXPECT_EQ(run.text({.bytes_sent = 800}), "");
  const StepReport compressed{.phase = Phase::kCompressed, .bytes_sent = 30};
  const auto told = run.step(compressed);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].kind, RunNotices::Kind::kNews);
  EXPECT_EQ(told[0].text,
            "step 2: from now on ranks exchange momentum in one bit per "
            "element; a step sent 800 bytes before, this one 30");
  EXPECT_EQ(run.text(compressed), "");
  EXPECT_EQ(run.text({.phase = Phase::kLocal}),
            "step 4: from now on ranks exchange nothing in most steps, and one "
            "bit per element in some; a step sent 800 bytes before, this one "
            "0\n");
  EXPECT_EQ(run.notices.totals().bytes_sent, 860u);
  EXPECT_EQ(run.notices.totals().bytes_saved, 4 * 800 - 860);
}

TEST(RunNotices, AreSilentOnOtherRanksAndInASingleOne) {
  for (const auto& [ranks, rank] : {std::pair(1, 0), std::pair(2, 1)}) {
    RankOfRun run(onebit(10), ranks, rank);
    EXPECT_TRUE(run.notices.at_start(10).empty());
    EXPECT_EQ(run.text({.gradients_equal = rank == 1}), "");
    EXPECT_EQ(run.text({.phase = Phase::kCompressed}), "");
  }
}

TEST(RunNotices, TellOfAnOuterLoopOnce) {
  config::Config config;
  config.outer.sync_every = 3;
  RankOfRun run(config);
  EXPECT_EQ(run.text({.phase = Phase::kLocal}),
            "step 1: from now on ranks exchange what up to 3 local steps have "
            "changed\n");
  EXPECT_EQ(run.text({.phase = Phase::kCompressed}), "");
}

TEST(RunNotices, WarnOfARunThatEndsBeforeItCompresses) {
  const auto told = [](const config::Config& config, std::int64_t freeze_step) {
    return text_of(RunNotices(config, 0, 2, "").at_start(freeze_step));
  };
  EXPECT_EQ(told(onebit(300), 300),
            "freeze_step is 300, and the run has total_steps=300: nothing will "
            "be compressed. Omit freeze_step, which then follows from "
            "total_steps, or set a smaller one\n");
  EXPECT_EQ(told(onebit(300), 299), "");
  EXPECT_EQ(told(onebit(), 100'000), "");
  config::Config zero_one;
  zero_one.optimizer = optim::ZeroOneAdamOptions{.total_steps = 20};
  EXPECT_TRUE(told(zero_one, 30).starts_with("var_freeze_step is 30"));
  EXPECT_NE(told(zero_one, 30).find("there will be no local steps"),
            std::string::npos);
  config::Config low_rank;
  low_rank.average = {.low_rank = 2, .total_steps = 10};
  EXPECT_EQ(text_of(RunNotices(low_rank, 0, 2, "").at_start({})),
            "first_steps is 20, and the run has total_steps=10: no step will "
            "be of low rank, and all average in 4 bits. Set fewer "
            "first_steps\n");
  low_rank.average.total_steps = 21;
  EXPECT_TRUE(RunNotices(low_rank, 0, 2, "").at_start({}).empty());
}

TEST(RunNotices, TellARunOfUnknownLengthAfter1000ExactSteps) {
  for (const auto& [freeze_step, when] :
       {std::pair<std::int64_t, std::string>{5000, "after step 5000"},
        {optim::kAutoFreeze,
         "when the variance has settled, at step 100000 at the latest"}}) {
    RankOfRun run(onebit());
    std::string all;
    for (int i = 0; i < 999; ++i) all += run.text({}, freeze_step);
    EXPECT_EQ(all, "");
    EXPECT_EQ(run.text({}, freeze_step),
              "1000 steps were exact, so no bytes were saved: compression "
              "begins " +
                  when +
                  ". Give total_steps, and it begins after a fifth of the "
                  "run\n");
    EXPECT_EQ(run.text({}, freeze_step), "");
  }
  RankOfRun exact({});
  std::string all;
  for (int i = 0; i < 1003; ++i) all += exact.text({}, std::nullopt);
  EXPECT_EQ(all, "");
}

TEST(RunNotices, AnnounceLowRankOnce) {
  config::Config config;
  config.average = {.low_rank = 2};
  RankOfRun run(config);
  EXPECT_EQ(run.text({.bits = 4, .bytes_sent = 100}, {}), "");
  EXPECT_EQ(run.text({.low_rank = 2, .bytes_sent = 9}, {}),
            "step 2: from now on gradients travel as factors of low rank 2; a "
            "step sent 100 bytes before, this one 9\n");
  EXPECT_EQ(run.text({.low_rank = 2, .bytes_sent = 9}, {}), "");
  // Exactly, the first step would have sent eight times as much.
  EXPECT_EQ(run.notices.totals().bytes_saved, 3 * 800 - 118);
}

TEST(RunNotices, NameEqualGradientsOnce) {
  RankOfRun run({});
  EXPECT_EQ(run.text({.gradients_equal = true}, {}),
            "all ranks had the same gradients. Pass each rank its own\n");
  EXPECT_EQ(run.text({.gradients_equal = true}, {}), "");
}

TEST(RunNotices, TellOfSkippedSteps1And2And4And8) {
  const RunNotices notices({}, 0, 2, "");
  StepReport report{.applied = false, .nonfinite_rank = 1};
  std::vector<std::int64_t> told;
  for (std::int64_t skipped = 1; skipped <= 9; ++skipped)
    if (!notices.skipped(report, {.steps = 7, .skipped = skipped}).empty())
      told.push_back(skipped);
  EXPECT_EQ(told, (std::vector<std::int64_t>{1, 2, 4, 8}));
  EXPECT_EQ(text_of(notices.skipped(report, {.steps = 7, .skipped = 2})),
            "the step after 7 was skipped on all ranks, 2 so far: a gradient "
            "was not finite on rank 1\n");
  report.nonfinite_rank = -1;
  report.loss_scale = 1024;
  EXPECT_TRUE(text_of(notices.skipped(report, {.steps = 7, .skipped = 1}))
                  .ends_with("was not finite; the loss scale was 1024\n"));
  EXPECT_TRUE(
      text_of(notices.skipped(report,
                              {.steps = 7, .skipped = 1, .loss_scale = 512}))
          .ends_with("; the loss scale was 1024 and is 512 now\n"));
}

TEST(RunNotices, AResumedRunIsOneRun) {
  RankOfRun first(onebit());
  (void)first.step({.bytes_sent = 800});
  (void)first.step({.phase = Phase::kCompressed, .bytes_sent = 30});
  RankOfRun second(onebit());
  second.notices.restore(first.notices.state());
  EXPECT_EQ(second.text({.phase = Phase::kCompressed, .bytes_sent = 30}), "");
  EXPECT_EQ(second.notices.totals().bytes_sent, 860u);
  // Of W ranks each sends (W - 1) / W of an exact step: 1600 / 2, then 1600
  // * 3 / 4.
  RankOfRun more(onebit(), 4);
  more.notices.restore(first.notices.state());
  (void)more.step({.phase = Phase::kCompressed, .bytes_sent = 45});
  EXPECT_EQ(more.notices.totals().bytes_saved, 2 * 800 + 1200 - 875);
  // A single rank keeps the step of more ranks.
  RankOfRun alone(onebit(), 1);
  alone.notices.restore(first.notices.state());
  (void)alone.step({});
  EXPECT_EQ(alone.notices.state().of_exact_step, 800u);
}

TEST(RunNotices, ARunThatWasLoadedAfterItsFreezeHasAnnouncedIt) {
  RankOfRun run(onebit());
  run.notices.continue_in(Phase::kExact);
  EXPECT_NE(run.text({.phase = Phase::kCompressed}), "");
  RankOfRun later(onebit());
  later.notices.continue_in(Phase::kCompressed);
  EXPECT_EQ(later.text({.phase = Phase::kCompressed}), "");
}

}  // namespace
}  // namespace thinwire::engine::run_notices_test
