// SPDX-License-Identifier: Apache-2.0
// Elements whose first gradient comes after the freeze. Their steps are held
// equal to plain loops in onebit_adam_plain_test.cpp and
// zero_one_adam_test.cpp, and with gradients of 16 bits in by_host_test.cpp.
#include <gtest/gtest.h>

#include <limits>

#include "optim/low_bit/late_cases.h"
#include "optim/states.h"

namespace thinwire::optim::late_elements_test {
namespace {

using test::kFirstLate;
using test::kLateFreeze;

struct Case {
  std::string name;
  test::MakeOptimizer make;
};

std::vector<Case> two_stage_cases() {
  const OnebitAdamOptions adam{.learning_rate = 0.01,
                               .freeze = {.step = kLateFreeze}};
  OnebitAdamOptions bf16 = adam;
  bf16.compression.residual_dtype = DType::kBFloat16;
  const OnebitLambOptions lamb{.learning_rate = 0.01,
                               .freeze = {.step = kLateFreeze}};
  return {{"onebit_adam", test::onebit_adam(adam)},
          {"onebit_adam_bf16", test::onebit_adam(bf16)},
          {"onebit_lamb", test::onebit_lamb(lamb)}};
}

class LateElements : public ::testing::TestWithParam<std::tuple<int, Case>> {};
INSTANTIATE_TEST_SUITE_P(
    All, LateElements,
    ::testing::Combine(::testing::Values(1, 2, 3, 4),
                       ::testing::ValuesIn(two_stage_cases())),
    test::kNameAndWorld);

TEST_P(LateElements, CostNothingBesideTheirStep) {
  const auto& [world, tested] = GetParam();
  const ParameterLayout layout = test::late_layout();
  comm::run_local_ranks(world, [&, &test_case = tested](auto& comm) {
    const auto optimizer = test_case.make(comm, layout);
    std::vector<float> params = test::normal(layout.size(), 3);
    std::uint64_t bytes = 0;
    for (std::int64_t t = 1; t <= kFirstLate + 4; ++t) {
      auto grads = test::late_gradient(layout, t, comm.rank());
      const StepReport report = optimizer->step(params, grads);
      if (t == kLateFreeze + 1) bytes = report.bytes_sent;
      if (t > kLateFreeze && t != kFirstLate && t != kFirstLate + 1) {
        EXPECT_EQ(report.bytes_sent, bytes) << t;
      }
    }
  });
}

// A step in which late elements would have come to life is skipped: they do so
// in the next one that counts.
TEST_P(LateElements, ASkippedStepWakesNobody) {
  const auto& [world, tested] = GetParam();
  const ParameterLayout layout = test::late_layout();
  comm::run_local_ranks(world, [&, &test_case = tested](auto& comm) {
    const auto optimizer = test_case.make(comm, layout);
    std::vector<float> params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= kFirstLate; ++t) {
      auto grads = test::late_gradient(layout, t, comm.rank());
      if (t == kFirstLate) {
        auto bad = grads;
        if (comm.rank() == comm.size() - 1)
          bad.back() = std::numeric_limits<float>::infinity();
        const StateDict before = copy_of(optimizer->state());
        EXPECT_FALSE(optimizer->step(params, bad).applied);
        EXPECT_TRUE(test::same_state(copy_of(optimizer->state()), before,
                                     {"skipped_steps"}));
      }
      const StepReport report = optimizer->step(params, grads);
      EXPECT_EQ(report.revived > 0, t == kFirstLate);
    }
  });
}

}  // namespace
}  // namespace thinwire::optim::late_elements_test
