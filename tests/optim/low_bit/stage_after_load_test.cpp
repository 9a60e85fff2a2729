// SPDX-License-Identifier: Apache-2.0
// The stage after a load: a step that the caller names decides it, anything
// else is the state's.
#include <gtest/gtest.h>

#include <cmath>

#include "optim/low_bit/cases.h"
#include "support/errors.h"

namespace thinwire::optim::stage_after_load_test {
namespace {

constexpr std::int64_t kSteps = 6;  // of the run that is saved
constexpr std::int64_t kLast = 16;  // of the run that goes on
constexpr std::int64_t kNever = 100;

using test::MakeOptimizer;

/// The last step of the first stage; none: it is not named.
using Step = std::optional<std::int64_t>;
using Kind = test::OpenCase<Step>;

std::vector<Kind> kinds() {
  const auto set = [](auto& o, Step step) { o.freeze.step = step; };
  OnebitAdamOptions adam{.learning_rate = 0.02};
  OnebitAdamOptions mixed = adam;
  adam.compression.exchange.bucket_elements = 900;
  mixed.groups.resize(2);
  mixed.groups[1].non_freeze = true;
  return {
      test::open_case<Step>("onebit_adam", test::onebit_adam, adam, set),
      test::open_case<Step>("onebit_adam_mixed", test::onebit_adam, mixed, set),
      test::open_case<Step>("onebit_lamb", test::onebit_lamb,
                            test::short_onebit_lamb(), set),
      test::open_case<Step>("zero_one_adam", test::zero_one_adam,
                            test::short_zero_one_adam(),
                            [](ZeroOneAdamOptions& o, Step step) {
                              o.var_freeze_step = step;
                              if (!step)
                                o.var_update_scaler = o.local_step_scaler =
                                    o.local_step_clipper = {};
                            })};
}

class StageAfterLoad : public ::testing::TestWithParam<std::tuple<int, Kind>> {
 protected:
  using Body = std::function<void(comm::Communicator&, std::vector<float>&)>;

  void on_ranks(const Body& body) {
    comm::run_local_ranks(std::get<0>(GetParam()), [&](auto& comm) {
      auto params = test::normal(layout.size(), 3);
      body(comm, params);
    });
  }
  void step(Optimizer& optimizer, std::vector<float>& params, std::int64_t t,
            int rank) const {
    ASSERT_TRUE(test::step_of(optimizer, params, t, rank).applied);
  }
  [[nodiscard]] MakeOptimizer of(Step step) const {
    return std::get<1>(GetParam()).make(step);
  }
  [[nodiscard]] const std::string& name() const {
    return std::get<1>(GetParam()).name;
  }

  const ParameterLayout layout = test::grouped_layout();
};

INSTANTIATE_TEST_SUITE_P(All, StageAfterLoad,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 8),
                                            ::testing::ValuesIn(kinds())),
                         test::kNameAndWorld);

// The run has the bits of one that has always named this step.
TEST_P(StageAfterLoad, EndsAtOnceIfTheNamedStepHasPassed) {
  on_ranks([&](comm::Communicator& comm, std::vector<float>& params) {
    auto same = params;
    const auto named = of(kSteps)(comm, layout);
    auto other = of(kNever)(comm, layout);
    for (std::int64_t t = 1; t <= kLast; ++t) {
      step(*named, params, t, comm.rank());
      step(*other, same, t, comm.rank());
      if (t == kSteps) {
        const StateDict state = copy_of(other->state());
        other = of(kSteps - 1)(comm, layout);
        const Notes notes = other->load_state_dict(state);
        EXPECT_EQ(other->progress().phase, named->progress().phase);
        ASSERT_EQ(notes.size(), 1u);
        EXPECT_NE(notes[0].find("freeze_step is 5"), std::string::npos)
            << notes[0];
      }
      ASSERT_EQ(params, same) << t;
    }
  });
}

TEST_P(StageAfterLoad, IsTheStatesIfNoStepIsNamed) {
  on_ranks([&](comm::Communicator& comm, std::vector<float>& params) {
    auto same = params;
    const auto unbroken = of(kSteps)(comm, layout);
    auto resumed = of(kSteps)(comm, layout);
    for (std::int64_t t = 1; t <= kLast; ++t) {
      step(*unbroken, params, t, comm.rank());
      step(*resumed, same, t, comm.rank());
      ASSERT_EQ(params, same) << t;
      if (t != 3 && t != kSteps + 3) continue;
      const StateDict state = copy_of(resumed->state());
      resumed = of({})(comm, layout);
      EXPECT_TRUE(resumed->load_state_dict(state).empty());
      EXPECT_EQ(resumed->progress().freeze_step, kSteps);
    }
  });
}

// Exact steps go on up to the named one, and the last of them ends the stage.
TEST_P(StageAfterLoad, ReturnsToExactStepsIfTheNamedStepLiesAhead) {
  constexpr std::int64_t kNamed = 13;
  on_ranks([&](comm::Communicator& comm, std::vector<float>& params) {
    auto optimizer = of(3)(comm, layout);
    for (std::int64_t t = 1; t <= kSteps; ++t)
      step(*optimizer, params, t, comm.rank());
    const StateDict state = copy_of(optimizer->state());
    optimizer = of(kNamed)(comm, layout);
    const Notes notes = optimizer->load_state_dict(state);
    EXPECT_EQ(optimizer->progress().freeze_step, kNamed);
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_NE(notes[0].find("freeze_step is 13"), std::string::npos);
    EXPECT_EQ(notes[0].find("denominators") == std::string::npos,
              name() == "onebit_adam_mixed");
    bool had_variance = false;
    for (std::int64_t t = kSteps + 1; t <= kLast; ++t) {
      step(*optimizer, params, t, comm.rank());
      for (const float p : params) ASSERT_TRUE(std::isfinite(p)) << t;
      had_variance =
          had_variance ||
          (t < kNamed && copy_of(optimizer->state()).has_array("exp_avg_sq"));
      if (name() == "zero_one_adam") continue;
      EXPECT_EQ(optimizer->progress().phase,
                t < kNamed ? Phase::kExact : Phase::kCompressed)
          << t;
    }
    EXPECT_TRUE(had_variance);
    optim::synchronize(*optimizer, params);
    auto of_first = params;
    comm.broadcast(View(std::span(of_first)), 0);
    EXPECT_EQ(params, of_first);
  });
}

// Exact steps divide by the denominators of the compressed ones.
TEST(StageAfterLoadOfOnebitAdam, KeepsTheVarianceFreeOfBias) {
  const auto layout = test::grouped_layout();
  for (const bool keeps_variance : {false, true})
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      OnebitAdamOptions o{.learning_rate = 0.01,
                          .beta2 = 0.9,
                          .freeze = {.step = 3},
                          .compression = {.denom_floor = 0}};
      o.groups.resize(2);
      o.groups[1].non_freeze = keeps_variance;
      auto params = test::normal(layout.size(), 3);
      OnebitAdam first(comm, layout, o);
      std::vector<float> at_freeze;
      for (std::int64_t t = 1; t <= 6; ++t) {
        auto grads = test::gradient(layout.size(), t, comm.rank());
        if (t == 3) {  // what v will be, of the averaged gradient
          OnebitAdamOptions later = o;
          later.freeze.step = 9;
          OnebitAdam exact(comm, layout, later);
          exact.load_state_dict(copy_of(first.state()));
          auto same = params;
          auto same_grads = grads;
          exact.step(same, same_grads);
          const StateDict state = copy_of(exact.state());
          const auto v = state.array("exp_avg_sq").as<float>();
          at_freeze.assign(v.begin(), v.end());
        }
        first.step(params, grads);
      }
      o.freeze.step = 9;
      OnebitAdam second(comm, layout, o);
      second.load_state_dict(copy_of(first.state()));
      EXPECT_EQ(second.progress().phase, Phase::kExact);
      EXPECT_EQ(second.freeze()->frozen_at(), 0);
      const StateDict state = copy_of(second.state());
      const auto v = state.array("exp_avg_sq").as<float>();
      const double scale = (1 - std::pow(0.9, 6)) / (1 - std::pow(0.9, 3));
      for (std::size_t i = 0; i < v.size(); ++i)
        if (layout.parameter_at(i).group == 0) {
          ASSERT_NEAR(v[i], at_freeze[i] * scale, 2e-4 * at_freeze[i] * scale)
              << i << " keeps its variance: " << keeps_variance;
        }
    });
}

TEST(StageAfterLoadOfOnebitAdam, AnAutomaticFreezeThatHasHappenedStays) {
  const auto layout = test::small_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const OnebitAdamOptions o{
        .freeze = {.step = kAutoFreeze, .min_step = 1, .max_step = 4}};
    auto params = test::normal(layout.size(), 3);
    OnebitAdam first(comm, layout, o);
    for (std::int64_t t = 1; t <= 6; ++t)
      (void)test::step_of(first, params, t, comm.rank());
    ASSERT_GT(first.freeze()->frozen_at(), 0);
    for (OnebitAdamOptions later :
         {OnebitAdamOptions{.freeze = {.step = kAutoFreeze}},
          OnebitAdamOptions{},
          OnebitAdamOptions{.freeze = {.total_steps = 5000}}}) {
      OnebitAdam second(comm, layout, later);
      EXPECT_TRUE(second.load_state_dict(copy_of(first.state())).empty());
      EXPECT_EQ(second.freeze()->frozen_at(), first.freeze()->frozen_at());
    }
  });
}

// Until 0.8 the variance could go on moving after the freeze. States tell only
// where it was kept.
TEST(StageAfterLoadOfOnebitAdam, AStateWhoseVarianceKeptMovingIsRefused) {
  const auto layout = test::small_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const OnebitAdamOptions o{.freeze = {.step = 2}};
    auto params = test::normal(layout.size(), 3);
    OnebitAdam first(comm, layout, o);
    for (std::int64_t t = 1; t <= 4; ++t)
      (void)test::step_of(first, params, t, comm.rank());
    OnebitAdam second(comm, layout, o);
    StateDict moving = copy_of(first.state());
    moving.put_integer("variance_is_unbiased", 1);
    test::expect_error(ErrorCode::kCorruptCheckpoint,
                       {"variance_refresh", "weights_only=True"},
                       [&] { second.load_state_dict(moving); });
    EXPECT_EQ(second.progress().steps, 0);
    StateDict standing = copy_of(first.state());
    standing.put_integer("variance_is_unbiased", 0);
    second.load_state_dict(standing);
    EXPECT_EQ(second.freeze()->frozen_at(), 2);
  });
}

}  // namespace
}  // namespace thinwire::optim::stage_after_load_test
