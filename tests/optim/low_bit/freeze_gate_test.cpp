// SPDX-License-Identifier: Apache-2.0
// Who may put off the end of the exact stage, and what that changes.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "optim/low_bit/cases.h"
#include "optim/states.h"

namespace thinwire::optim::freeze_gate_test {
namespace {

/// With freeze_step as given.
using Kind = test::OpenCase<std::int64_t>;

std::vector<Kind> kinds() {
  const auto set = [](auto& o, std::int64_t step) { o.freeze.step = step; };
  return {test::open_case<std::int64_t>("onebit_adam", test::onebit_adam,
                                        OnebitAdamOptions{}, set),
          test::open_case<std::int64_t>("onebit_lamb", test::onebit_lamb,
                                        OnebitLambOptions{}, set)};
}

// An optimizer on one rank, with the parameters that it has brought about.
struct Trained {
  Trained(comm::Communicator& comm, const test::MakeOptimizer& make)
      : optimizer(make(comm, test::small_layout())), rank(comm.rank()) {}
  StepReport step() {
    return test::step_of(*optimizer, params, ++number, rank);
  }

  std::unique_ptr<Optimizer> optimizer;
  int rank;
  std::int64_t number = 0;
  std::vector<float> params = test::normal(test::small_layout().size(), 3);
};

class FreezeGates : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(All, FreezeGates, ::testing::ValuesIn(kinds()),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(FreezeGates, MeasuringAnExchangeChangesNoBits) {
  for (const int world : {2, 3})
    comm::run_local_ranks(world, [](comm::Communicator& comm) {
      Trained plain(comm, GetParam().make(4));
      Trained timed(comm, GetParam().make(4));
      int asked = 0;
      timed.optimizer->freeze()->set_gate([&](const FreezeRequest& request) {
        ++asked;
        EXPECT_EQ(request.step, 4);
        EXPECT_GT(request.time_exchange(), 0);
        return true;
      });
      for (int i = 0; i < 8; ++i) {
        EXPECT_EQ(plain.step().phase,
                  i < 4 ? Phase::kExact : Phase::kCompressed);
        timed.step();
        EXPECT_EQ(timed.params, plain.params);
      }
      EXPECT_EQ(asked, 1);
      const StateDict state = copy_of(timed.optimizer->state());
      EXPECT_TRUE(test::same_state(state, copy_of(plain.optimizer->state())));
      EXPECT_FALSE(state.has_scalar("freeze_held_until"));  // it was not
    });
}

TEST_P(FreezeGates, ARefusalDelaysTheFreezeByATenthOfTheSteps) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    Trained run(comm, GetParam().make(18));
    std::vector<std::int64_t> asked;
    run.optimizer->freeze()->set_gate([&](const FreezeRequest& request) {
      asked.push_back(request.step);
      return request.step >= 21;
    });
    for (int i = 0; i < 23; ++i) (void)run.step();
    EXPECT_EQ(asked, (std::vector<std::int64_t>{18, 19, 20, 22}));
    EXPECT_EQ(run.optimizer->progress().phase, Phase::kCompressed);
  });
}

TEST_P(FreezeGates, ADelayIsPartOfTheState) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    Trained run(comm, GetParam().make(30));
    run.optimizer->freeze()->set_gate(
        [](const FreezeRequest&) { return false; });
    for (int i = 0; i < 30; ++i) (void)run.step();
    const StateDict state = copy_of(run.optimizer->state());
    EXPECT_EQ(state.integer("freeze_held_until"), 33);

    // Nobody asks here, but what was put off stays so.
    run.optimizer = GetParam().make(30)(comm, test::small_layout());
    run.optimizer->load_state_dict(state);
    for (int i = 31; i <= 34; ++i)
      EXPECT_EQ(run.step().phase, i <= 33 ? Phase::kExact : Phase::kCompressed)
          << i;
  });
}

TEST_P(FreezeGates, OneRankIsNotAsked) {
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    Trained run(comm, GetParam().make(2));
    run.optimizer->freeze()->set_gate([](const FreezeRequest&) -> bool {
      ADD_FAILURE() << "asked";
      return false;
    });
    for (int i = 0; i < 3; ++i) (void)run.step();
    EXPECT_EQ(run.optimizer->progress().phase, Phase::kCompressed);
  });
}

}  // namespace
}  // namespace thinwire::optim::freeze_gate_test
