// SPDX-License-Identifier: Apache-2.0
// The bytes of every step, against the formulas of docs/algorithms.md.
#include <gtest/gtest.h>

#include "exchange/codec/sign.h"
#include "optim/low_bit/late_cases.h"
#include "optim/naive/drive.h"
#include "optim/support.h"

namespace thinwire::optim::bytes_test {
namespace {

constexpr std::size_t kBlocks = 48;  // in balance for 2, 3, 4 and 8 ranks

ParameterLayout full_blocks() {
  return ParameterLayout::of({{"p", {kBlocks / 2, 1024}}, {"q", {24 * 1024}}});
}

struct Bytes {
  std::uint64_t exact;
  std::uint64_t compressed;
};

Bytes formula(int world) {
  const auto w = static_cast<std::uint64_t>(world);
  const std::uint64_t scalar = 16 * (w - 1);
  const std::uint64_t n = kBlocks * 1024;
  return {scalar + 2 * (w - 1) * (n / w) * 4,
          scalar + 2 * (w - 1) * (kBlocks / w) *
                       exchange::sign_codec().record_bytes(1024)};
}

class LowBitBytes : public ::testing::TestWithParam<int> {};

TEST_P(LowBitBytes, OfExactAndCompressedSteps) {
  const Bytes want = formula(GetParam());
  for (const auto& make :
       {test::onebit_adam({.freeze = {.step = 2}}),
        test::onebit_lamb({.learning_rate = 0.01, .freeze = {.step = 2}})})
    test::train(GetParam(), full_blocks(), make, 5,
                [&](Optimizer&, const StepReport& report) {
                  const bool exact = report.phase == Phase::kExact;
                  EXPECT_EQ(report.bytes_sent,
                            exact ? want.exact : want.compressed);
                  EXPECT_EQ(report.collectives, exact ? 2u : 3u);
                });
  EXPECT_LT(want.compressed * 30, want.exact);
}

// In few bits: a quarter and an eighth of an exact step, and the scales.
TEST_P(LowBitBytes, OfALowBitWarmUp) {
  const auto w = static_cast<std::uint64_t>(GetParam());
  for (const int bits : {4, 8}) {
    const std::uint64_t want =
        16 * (w - 1) + 2 * (w - 1) * (kBlocks / w) *
                           exchange::codec_of(bits).record_bytes(1024);
    const auto expect = [&](Optimizer&, const StepReport& report) {
      if (report.phase != Phase::kExact) return;
      EXPECT_EQ(report.bits, bits);
      EXPECT_EQ(report.bytes_sent, want);
      EXPECT_EQ(report.collectives, 3u);
      EXPECT_NEAR(static_cast<double>(report.bytes_sent),
                  static_cast<double>(formula(GetParam()).exact) * bits / 32,
                  0.01 * static_cast<double>(want));
    };
    const FreezeOptions freeze{.step = 3, .warmup_bits = bits};
    for (const auto& make :
         {test::onebit_adam({.freeze = freeze}),
          test::onebit_lamb({.learning_rate = 0.01, .freeze = freeze}),
          test::zero_one_adam({.learning_rate = 0.01,
          .var_freeze_step = 3,
          .warmup_bits = bits})})
      test::train(GetParam(), full_blocks(), make, 4, expect);
  }
}

// Elements whose first gradient comes after the freeze.
TEST_P(LowBitBytes, AreTheSameInEveryStepWithoutAnActivation) {
  using test::kFirstLate;
  using test::kLateFreeze;
  const FreezeOptions freeze{.step = kLateFreeze};
  for (const auto& make :
       {test::onebit_adam({.freeze = freeze}),
        test::onebit_adam({.freeze = freeze,
        .compression = {.residual_dtype = DType::kBFloat16}}),
        test::onebit_lamb({.learning_rate = 0.01, .freeze = freeze})}) {
    const auto bytes = test::drive<std::uint64_t>(
        {GetParam()}, test::late_layout(),
        {.steps = kFirstLate + 4, .gradient = test::late_gradient}, make,
        [](auto&, const StepReport& report, auto&) {
          return report.bytes_sent;
        });
    for (std::size_t t = kLateFreeze + 1; t < bytes.size(); ++t)
      if (t != kFirstLate - 1 && t != kFirstLate) {
        EXPECT_EQ(bytes[t], bytes[kLateFreeze]) << "step " << t + 1;
      }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LowBitBytes, ::testing::Values(2, 3, 4, 8));

}  // namespace
}  // namespace thinwire::optim::bytes_test
