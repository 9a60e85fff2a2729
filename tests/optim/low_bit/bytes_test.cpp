// SPDX-License-Identifier: Apache-2.0
// The bytes of every step, against the formulas of docs/algorithms.md.
#include <gtest/gtest.h>

#include <map>

#include "optim/support.h"
#include "thinwire/exchange/block_layout.h"

namespace thinwire::optim::bytes_test {
namespace {

constexpr std::size_t kBlocks = 48;  // in balance for 2, 3, 4 and 8 ranks

ParameterLayout full_blocks() {
  return ParameterLayout::of({{"p", {kBlocks / 2, 1024}}, {"q", {24 * 1024}}});
}

// Of one step; 0 bits: fp32.
std::uint64_t formula(int world, int bits) {
  const auto w = static_cast<std::uint64_t>(world);
  const std::uint64_t piece =
      bits == 0 ? kBlocks * 1024 / w * 4
                : kBlocks / w * exchange::record_bytes(1024, bits);
  return 16 * (w - 1) + 2 * (w - 1) * piece;
}

class LowBitBytes : public ::testing::TestWithParam<int> {};

TEST_P(LowBitBytes, OfExactAndCompressedSteps) {
  for (const int bits : {0, 4, 8}) {
    const FreezeOptions freeze{.step = 2, .warmup_bits = bits};
    for (const auto& make :
         {test::onebit_adam({.freeze = freeze}),
          test::onebit_lamb({.learning_rate = 0.01, .freeze = freeze})})
      test::train(GetParam(), full_blocks(), make, 5,
                  [&](Optimizer&, const StepReport& report) {
                    const bool exact = report.phase == Phase::kExact;
                    EXPECT_EQ(report.bits, exact ? bits : 0);
                    EXPECT_EQ(report.bytes_sent,
                              formula(GetParam(), exact ? bits : 1));
                    EXPECT_EQ(report.collectives, exact && bits == 0 ? 2u : 3u);
                  });
  }
  EXPECT_LT(formula(GetParam(), 1) * 30, formula(GetParam(), 0));
}

// kappa 2, V 8: variance steps 1, 2, 4, 6, 8; alpha 3, clipper 4: the interval
// is 1 in steps 9 to 11, 2 in 12 to 14, then 4: syncs are 9, 10, 11, 12, 14, 16
// and 20.
TEST_P(LowBitBytes, AndRoundsOfZeroOneAdam) {
  for (const int bits : {0, 4, 8}) {
    const auto make = test::zero_one_adam({.learning_rate = 0.01,
                                           .var_freeze_step = 8,
                                           .var_update_scaler = 2,
                                           .local_step_scaler = 3,
                                           .local_step_clipper = 4,
                                           .warmup_bits = bits});
    std::map<Phase, int> steps;
    test::train(GetParam(), full_blocks(), make, 20,
                [&](Optimizer&, const StepReport& report) {
                  ++steps[report.phase];
                  const bool local = report.phase == Phase::kLocal;
                  const bool exact = report.phase == Phase::kExact;
                  EXPECT_EQ(report.bytes_sent,
                            local ? 0 : formula(GetParam(), exact ? bits : 1));
                  EXPECT_EQ(report.collectives == 0, local);
                });
    EXPECT_EQ(steps[Phase::kExact], 5);
    EXPECT_EQ(steps[Phase::kCompressed], 10);
    EXPECT_EQ(steps[Phase::kLocal], 5);
  }
}

INSTANTIATE_TEST_SUITE_P(All, LowBitBytes, ::testing::Values(2, 3, 4, 8));

}  // namespace
}  // namespace thinwire::optim::bytes_test
