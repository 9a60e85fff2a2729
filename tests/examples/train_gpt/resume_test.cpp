// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/resume.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "support/errors.h"

namespace thinwire::train_gpt::resume_test {
namespace {

using test::expect_error;
using test::expect_invalid;

const Position kPosition{.step = 100,
                         .next_sequence = std::int64_t{1} << 50,
                         .seed = std::numeric_limits<std::uint64_t>::max(),
                         .data_hash = 0xfedcba9876543210,
                         .totals = {.bytes_sent = 12,
                                    .seconds = 0.1,
                                    .tokens = 1e15,
                                    .val_loss = 1.25},
                         .saves = 3,
                         .save_seconds = 0.5};

TEST(Position, IsReadBackAsItWasSaved) {
  checkpoint::LoadReport report;
  report.extra = extra_of(kPosition, /*is_first=*/true);
  const Position read = position_of(report, /*is_first=*/true);
  EXPECT_EQ(read.step, kPosition.step);
  EXPECT_EQ(read.next_sequence, kPosition.next_sequence);
  EXPECT_EQ(read.seed, kPosition.seed);
  EXPECT_EQ(read.data_hash, kPosition.data_hash);
  EXPECT_EQ(read.totals.bytes_sent, 12u);
  EXPECT_EQ(read.totals.seconds, 0.1);
  EXPECT_EQ(read.totals.tokens, 1e15);
  EXPECT_EQ(read.totals.val_loss, 1.25);
  EXPECT_EQ(read.saves, 3);
  EXPECT_EQ(read.save_seconds, 0.5);
}

// Extra::common is compared, and totals are rank 0's.
TEST(Position, IsTheSameOnAllRanksExceptTotals) {
  Position other = kPosition;
  other.totals = {};
  checkpoint::Extra extra = extra_of(other, /*is_first=*/false);
  EXPECT_EQ(extra.common.scalars(), extra_of(kPosition, true).common.scalars());
  EXPECT_TRUE(extra.own.scalars().empty());
  checkpoint::LoadReport report;
  report.extra = std::move(extra);
  EXPECT_EQ(position_of(report, /*is_first=*/false).step, 100);
}

TEST(Position, OfAnotherProgramsCheckpointIsRefused) {
  checkpoint::LoadReport report;
  report.path = "out/step-0000000001";
  expect_error(ErrorCode::kCorruptCheckpoint,
               {"--resume: out/step-0000000001 is not a checkpoint of "
                "train_gpt",
                "step"},
               [&] { (void)position_of(report, false); });
}

TEST(Resumable, OnlyWithTheSameDataAndSeed) {
  const auto refused = [](std::initializer_list<std::string_view> parts,
                          const Position& now, std::int64_t steps = 200) {
    expect_invalid(parts, [&] {
      require_resumable(kPosition, now, {.steps = steps}, "out/step-1");
    });
  };
  Position now = kPosition;
  require_resumable(kPosition, now, {.steps = 100}, "");
  refused({"--steps must be at least 100, the step of out/step-1, got 99"}, now,
          99);
  now.seed = 2;
  refused({"out/step-1", "--seed 18446744073709551615, now it is 2",
           "train_gpt.resume_new_data=true"},
          now);
  now = kPosition;
  now.data_hash = 1;
  refused({"out/step-1", "other data", "train_gpt.resume_new_data=true"}, now);
  now.seed = 2;
  require_resumable(kPosition, now, {.steps = 100, .resume_new_data = true},
                    "");
}

}  // namespace
}  // namespace thinwire::train_gpt::resume_test
