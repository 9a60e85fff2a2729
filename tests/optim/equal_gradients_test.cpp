// SPDX-License-Identifier: Apache-2.0
// StepReport::gradients_equal. Whether norms are equal:
// gradient_agreement_test.cpp. That it costs no byte: low_bit/bytes_test.cpp.
#include <gtest/gtest.h>

#include "optim/low_bit/cases.h"

namespace thinwire::optim::equal_gradients_test {
namespace {

using test::MakeOptimizer;
using Floats = std::vector<float>;

const ParameterLayout& layout() {
  static const ParameterLayout all = test::grouped_layout();
  return all;
}

Floats same(std::int64_t t) { return test::gradient(layout().size(), t, 0); }

// Returns the reports of a new optimizer's steps 1, 2, ... on each rank.
std::vector<bool> reported(int world, const MakeOptimizer& make,
                           bool finds_nonfinite = false) {
  constexpr std::int64_t kSteps = 4;
  std::vector<std::vector<bool>> of_ranks(static_cast<std::size_t>(world));
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    const auto optimizer = make(comm, layout());
    Floats params = test::normal(layout().size(), 3);
    for (std::int64_t t = 1; t <= kSteps; ++t) {
      Floats grads = same(t);
      const StepReport report =
          optimizer->step({.params = params,
                           .grads = grads,
                           .finds_nonfinite = finds_nonfinite});
      of_ranks[static_cast<std::size_t>(comm.rank())].push_back(
          report.gradients_equal);
    }
  });
  for (const auto& own : of_ranks) EXPECT_EQ(own, of_ranks[0]);
  return of_ranks[0];
}

const std::vector<bool> kNever(4, false);
const std::vector<bool> kTwice = {true, true, false, false};

class EqualGradients : public ::testing::TestWithParam<test::LowBitCase> {};
INSTANTIATE_TEST_SUITE_P(
    All, EqualGradients,
    ::testing::Values(
        test::LowBitCase{"onebit_adam",
                         test::onebit_adam({.freeze = {.step = 9}})},
        test::LowBitCase{"compressed_at_once",
                         test::onebit_adam({.freeze = {.step = 1}})},
        test::LowBitCase{"onebit_lamb",
                         test::onebit_lamb(test::short_onebit_lamb())},
        test::LowBitCase{"zero_one_adam",
                         test::zero_one_adam(test::short_zero_one_adam())}),
    [](const auto& tested) { return tested.param.name; });

TEST_P(EqualGradients, AreReportedInTheFirstTwoSteps) {
  for (const int world : {2, 3, 4})
    EXPECT_EQ(reported(world, GetParam().make), kTwice);
  EXPECT_EQ(reported(1, GetParam().make), kNever);
}

TEST_P(EqualGradients, AreReportedAnewAfterALoad) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Floats params = test::normal(layout().size(), 3);
    auto optimizer = GetParam().make(comm, layout());
    const auto step = [&](std::int64_t t) {
      Floats grads = same(t);
      return optimizer->step(params, grads).gradients_equal;
    };
    for (std::int64_t t = 1; t <= 4; ++t) EXPECT_EQ(step(t), t <= 2) << t;
    const StateDict state = copy_of(optimizer->state());
    optimizer = GetParam().make(comm, layout());
    optimizer->load_state_dict(state);
    EXPECT_TRUE(step(5));
  });
}

// Exact data parallelism has the ranks' norms only where it is asked for the
// rank of a gradient that is not finite.
TEST(EqualGradientsOfDataParallel, AreReportedWhereNormsAreExchanged) {
  EXPECT_EQ(reported(3, test::exact_adam({}), true), kTwice);
  EXPECT_EQ(reported(3, test::exact_adam({}), false), kNever);
}

}  // namespace
}  // namespace thinwire::optim::equal_gradients_test
