// SPDX-License-Identifier: Apache-2.0
// ExchangeOptions::verify_every, for every optimizer.
#include <gtest/gtest.h>

#include "optim/low_bit/cases.h"
#include "support/errors.h"

namespace thinwire::optim::verification_test {
namespace {

using test::MakeOptimizer;

/// With verify_every as given.
using Verified = test::OpenCase<std::int64_t>;

std::vector<Verified> all() {
  const auto kinds = [](std::int64_t every) {
    return test::all_optimizers({.exchange = {.verify_every = every}});
  };
  std::vector<Verified> all;
  for (const test::LowBitCase& plain : kinds(0)) {
    const std::size_t k = all.size();
    all.push_back({plain.name,
                   [=](std::int64_t every) { return kinds(every)[k].make; },
                   plain.steps});
  }
  return all;
}

class Verification : public ::testing::TestWithParam<Verified> {};
INSTANTIATE_TEST_SUITE_P(All, Verification, ::testing::ValuesIn(all()),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(Verification, PassesAndChangesNothingInAHealthyRun) {
  const ParameterLayout layout = test::grouped_layout();
  const auto run = [&](std::int64_t every) {
    return test::train(3, layout, GetParam().make(every), GetParam().steps);
  };
  const auto want = run(0);
  EXPECT_EQ(run(1), want);
  EXPECT_EQ(run(3), want);
}

// Steps on all ranks until one reports; `spoil` acts on the last rank before
// step `at`. Returns the step in which every rank found out.
std::int64_t found_at(
    const MakeOptimizer& make, std::int64_t at,
    const std::function<void(Optimizer&, std::vector<float>&)>& spoil,
    std::initializer_list<std::string_view> message) {
  const ParameterLayout layout = test::grouped_layout();
  std::vector<std::int64_t> found(3, 0);
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    const auto optimizer = make(comm, layout);
    std::vector<float> params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 24; ++t) {
      if (t == at && comm.rank() == 2) spoil(*optimizer, params);
      try {
        test::step_of(*optimizer, params, t, comm.rank());
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCommFailure);
        for (const std::string_view part : message)
          EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
              << error.what();
        found[static_cast<std::size_t>(comm.rank())] = t;
        return;
      }
    }
  });
  EXPECT_EQ(found[0], found[1]);
  EXPECT_EQ(found[0], found[2]);
  return found[0];
}

void spoil_w33(Optimizer& /*optimizer*/, std::vector<float>& params) {
  params[1030] += 1;
  params[1100] += 1;
}

TEST_P(Verification, NamesTheFirstTensorThatDiffers) {
  for (const std::int64_t at : {2, 5})  // an exact step and, if any, another
    EXPECT_EQ(
        found_at(GetParam().make(1), at, spoil_w33,
                 {"verification failed", "parameter w33 checksum", "rank 2"}),
        at);
}

TEST_P(Verification, ChecksAtTheChosenInterval) {
  EXPECT_EQ(found_at(GetParam().make(4), 2, spoil_w33, {"w33"}), 4);
  EXPECT_EQ(found_at(GetParam().make(0), 2, spoil_w33, {}), 0);
}

TEST_P(Verification, NamesADifferentRateOrDecay) {
  const auto other_rate = [](Optimizer& optimizer, std::vector<float>&) {
    optimizer.groups().set_learning_rate(1, 0.125);
  };
  const auto other_decay = [](Optimizer& optimizer, std::vector<float>&) {
    optimizer.groups().set_weight_decay(1, 0.125);
  };
  EXPECT_EQ(found_at(GetParam().make(1), 3, other_rate,
                     {"group 1 learning_rate=0.125", "group 1 learning_rate="}),
            3);
  EXPECT_EQ(found_at(GetParam().make(1), 3, other_decay,
                     {"group 1 learning_rate=", "weight_decay=0.125"}),
            3);
}

TEST(VerificationOfZeroOneAdam, WaitsForTheNextSync) {
  ZeroOneAdamOptions options = test::short_zero_one_adam();
  options.compression.exchange.verify_every = 1;
  const auto other_rate = [](Optimizer& optimizer, std::vector<float>&) {
    optimizer.groups().set_learning_rate(0, 0.125);
  };
  // Syncs are steps 16 and 20.
  EXPECT_EQ(found_at(test::zero_one_adam(options), 17, other_rate,
                     {"group 0 learning_rate=0.125"}),
            20);
  // Every seventh step: 14, which is a sync, and 21, which waits for 24.
  options.compression.exchange.verify_every = 7;
  EXPECT_EQ(found_at(test::zero_one_adam(options), 15, other_rate,
                     {"group 0 learning_rate=0.125"}),
            24);
}

TEST(VerificationOfZeroOneAdam, IsStillDueAfterALoad) {
  const ParameterLayout layout = test::grouped_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    ZeroOneAdamOptions options = test::short_zero_one_adam();
    options.compression.exchange.verify_every = 7;
    auto optimizer = std::make_unique<ZeroOneAdam>(comm, layout, options);
    std::vector<float> params = test::normal(layout.size(), 3);
    const auto step = [&](std::int64_t t) {
      test::step_of(*optimizer, params, t, comm.rank());
    };
    for (std::int64_t t = 1; t <= 22; ++t) step(t);  // due since step 21
    const StateDict state = copy_of(optimizer->state());
    optimizer = std::make_unique<ZeroOneAdam>(comm, layout, options);
    optimizer->load_state_dict(state);
    if (comm.rank() == 1) optimizer->groups().set_learning_rate(0, 0.125);
    step(23);
    test::expect_error(ErrorCode::kCommFailure, {"group 0 learning_rate=0.125"},
                       [&] { step(24); });
  });
}

// Local steps start from what was equal at the last sync, so what is done to
// the parameters in between does not last.
TEST(VerificationOfZeroOneAdam, AcceptsChangesThatALocalStepOverwrites) {
  ZeroOneAdamOptions options = test::short_zero_one_adam();
  options.compression.exchange.verify_every = 1;
  EXPECT_EQ(found_at(test::zero_one_adam(options), 18, spoil_w33, {}), 0);
}

// ---- ranks that take steps of two optimizers in another order

class CrossedOptimizers : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(ExactAndCompressed, CrossedOptimizers,
                         ::testing::Values(0, 3));

// Alike in everything: only their order tells them apart.
TEST_P(CrossedOptimizers, AreNamedOnEveryRankAndNothingHasChanged) {
  const ParameterLayout layout = test::small_layout();
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    OnebitAdam one(comm, layout, {.freeze = {.step = 2}});
    OnebitAdam two(comm, layout, {.freeze = {.step = 2}});
    std::vector<float> params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= GetParam(); ++t)
      for (OnebitAdam* optimizer : {&one, &two})
        test::step_of(*optimizer, params, t, comm.rank());
    const std::vector<float> before = params;
    std::vector<float> grads = test::gradient(layout.size(), 9, comm.rank());
    OnebitAdam& first = comm.rank() == 1 ? two : one;
    test::expect_error(ErrorCode::kFailedPrecondition,
                       {"different optimizers", "same order"},
                       [&] { first.step(params, grads); });
    EXPECT_EQ(params, before);
    EXPECT_EQ(first.progress().steps, GetParam());
    // In the same order they go on.
    EXPECT_TRUE(one.step(params, grads).applied);
    EXPECT_TRUE(two.step(params, grads).applied);
  });
}

}  // namespace
}  // namespace thinwire::optim::verification_test
