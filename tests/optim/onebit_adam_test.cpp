// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/onebit_adam.h"

#include <gtest/gtest.h>

#include "optim/support.h"
#include "support/errors.h"

namespace thinwire::optim::onebit_adam_test {
namespace {

class OnebitAdamWorlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, OnebitAdamWorlds,
                         ::testing::Values(1, 2, 3, 4, 8));

TEST_P(OnebitAdamWorlds, IsExactAdamUpToTheFreeze) {
  const ParameterLayout layout = test::small_layout();
  const ExchangeOptions clipped{.max_grad_norm = 1};
  EXPECT_EQ(
      test::train(GetParam(), layout,
                  test::onebit_adam({.learning_rate = 0.01,
                                     .freeze = {.step = 5},
                                     .compression = {.exchange = clipped}}),
                  5),
      test::train(GetParam(), layout,
                  test::exact_adam({.learning_rate = 0.01}, clipped), 5));
}

TEST(OnebitAdam, ReportsTheResidual) {
  const ParameterLayout layout = test::small_layout();
  double before = -1;
  double after = -1;
  test::train(2, layout, test::onebit_adam({.freeze = {.step = 1}}), 2,
              [&](Optimizer& optimizer, const StepReport& report) {
                const auto& onebit = dynamic_cast<OnebitAdam&>(optimizer);
                (report.phase == Phase::kExact ? before : after) =
                    onebit.residual_ratio();
              });
  EXPECT_EQ(before, 0);
  // Signs keep 2/pi of a normal value's energy: the rest is about 0.6 of it.
  EXPECT_GT(after, 0.2);
  EXPECT_LT(after, 2);
}

TEST(OnebitAdam, LearningRatesMayChangeAtAnyTime) {
  const ParameterLayout layout = test::small_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    OnebitAdam optimizer(comm, layout, {.freeze = {.step = 2}});
    std::vector<float> params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 4; ++t) {
      const std::vector<float> before = params;
      optimizer.groups().set_learning_rate(t % 2 == 0 ? 0.0 : 0.01);
      test::step_of(optimizer, params, t, comm.rank());
      EXPECT_EQ(params == before, t % 2 == 0) << t;
    }
    test::expect_error(ErrorCode::kInvalidArgument, {"learning_rate", "-1"},
                       [&] { optimizer.groups().set_learning_rate(-1.0); });
    test::expect_error(ErrorCode::kInvalidArgument, {"group"},
                       [&] { optimizer.groups().set_learning_rate(1, 0.1); });
  });
}

TEST(OnebitAdam, MayHaveNothingToCompress) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const ParameterLayout layout = test::small_layout();
    OnebitAdamOptions options{.freeze = {.step = 1}};
    options.groups.resize(layout.num_groups());
    for (OnebitAdamGroup& group : options.groups) group.non_freeze = true;
    OnebitAdam optimizer(comm, layout, options);
    std::vector<float> params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 3; ++t)
      EXPECT_TRUE(test::step_of(optimizer, params, t, comm.rank()).applied);
    EXPECT_NO_THROW(optimizer.load_state_dict(copy_of(optimizer.state())));
  });
}

TEST(OnebitAdam, NonFreezeGroupsGoOnAsExactAdam) {
  const auto layout = ParameterLayout::of(
      {{"frozen", {700}, 0}, {"exact", {300}, 1}, {"more", {9}, 1}});
  OnebitAdamOptions options{.learning_rate = 0.01, .freeze = {.step = 2}};
  options.groups.resize(2);
  options.groups[1].non_freeze = true;
  for (const int world : {1, 3}) {
    const auto got = test::train(world, layout, test::onebit_adam(options), 8);
    const auto adam = test::train(
        world, layout,
        test::exact_adam({.learning_rate = 0.01, .groups = {{}, {}}}), 8);
    for (std::size_t r = 0; r < got.size(); ++r)
      for (std::size_t i = 700; i < layout.size(); ++i)
        ASSERT_EQ(got[r][i], adam[r][i]) << i;
  }
}

}  // namespace
}  // namespace thinwire::optim::onebit_adam_test
