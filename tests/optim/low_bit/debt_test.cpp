// SPDX-License-Identifier: Apache-2.0
// A group of one compresses nothing: what more ranks' residuals owe is
// delivered by its first exchange, y = x + e + d.
#include <gtest/gtest.h>

#include <cmath>

#include "optim/low_bit/cases.h"
#include "optim/states.h"

namespace thinwire::optim::debt_test {
namespace {

const ParameterLayout layout = test::grouped_layout();

// One step less than the saved one has taken; of three ranks, rank 0's with
// residuals that are all its own.
struct Indebted {
  StateDict state;
  std::vector<float> params;
  std::vector<double> owed;  // per element, 0 where one takes no part
};

void step(Optimizer& optimizer, std::vector<float>& params, std::int64_t t,
          int rank) {
  auto grads = test::gradient_with_gaps(layout, t, rank);
  optimizer.step(params, grads);
}

// The state of a group of one after `steps` steps, with residuals as a loader
// brings them.
Indebted indebted(const test::MakeOptimizer& make, std::int64_t steps) {
  Indebted saved;
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    const auto optimizer = make(comm, layout);
    saved.params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= steps; ++t)
      step(*optimizer, saved.params, t, 0);
    const State state = optimizer->state();
    saved.state = copy_of(state);
    const std::size_t n = layout.size();
    ASSERT_EQ(state.shard, (std::vector<Range>{{0, n}}));
    const auto e = test::normal(n, 5);
    const auto d = test::normal(n, 6);
    std::vector<std::uint8_t> takes_part(n, 1);
    if (saved.state.has_array("participation")) {
      const auto all = saved.state.array("participation").as<std::uint8_t>();
      takes_part.assign(all.begin(), all.end());
    }
    for (std::size_t i = 0; i < n; ++i)
      saved.owed.push_back(takes_part[i] == 1 ? double{e[i]} + d[i] : 0);
    saved.state.put("worker_error", e);
    saved.state.put("server_error", d);
  });
  return saved;
}

// Both take step `t`; `with` owes what `without` does not.
struct Twins {
  std::unique_ptr<Optimizer> with, without;
  std::vector<float> params_with, params_without;

  Twins(comm::Communicator& comm, const test::MakeOptimizer& make,
        const Indebted& saved)
      : with(make(comm, layout)),
        without(make(comm, layout)),
        params_with(saved.params),
        params_without(saved.params) {
    with->adopt(saved.state.part(""))();
    without->adopt(test::without(test::without(saved.state, "worker_error"),
                                 "server_error"))();
    EXPECT_TRUE(owes());
  }
  void step(std::int64_t t) {
    debt_test::step(*with, params_with, t, 0);
    debt_test::step(*without, params_without, t, 0);
  }
  [[nodiscard]] bool owes() const {
    const State state = with->state();
    EXPECT_EQ(state.find("worker_error") == nullptr,
              state.find("server_error") == nullptr);
    return state.find("worker_error") != nullptr;
  }
  // Returns by how much exp_avg is larger than without residuals.
  [[nodiscard]] std::vector<double> delivered() const {
    const StateDict a = copy_of(with->state());
    const StateDict b = copy_of(without->state());
    std::vector<double> sum;
    for (std::size_t i = 0; i < layout.size(); ++i)
      sum.push_back(double{a.array("exp_avg").as<float>()[i]} -
                    b.array("exp_avg").as<float>()[i]);
    return sum;
  }
};

void expect_near(const std::vector<double>& values,
                 const std::vector<double>& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_NEAR(values[i], expected[i], 1e-5 * (1 + std::abs(expected[i])))
        << "element " << i;
}

TEST(Debt, OfOnebitAdamIsDeliveredOnce) {
  const auto make =
      test::onebit_adam({.learning_rate = 0.01, .freeze = {.step = 2}});
  const Indebted saved = indebted(make, 4);
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    Twins twins(comm, make, saved);
    twins.step(5);
    expect_near(twins.delivered(), saved.owed);
    EXPECT_FALSE(twins.owes());
    twins.step(6);
    std::vector<double> decayed = saved.owed;
    for (double& value : decayed) value *= 0.9;
    expect_near(twins.delivered(), decayed);
  });
}

TEST(Debt, OfOnebitLambIsInTheCommonSizeOfMomenta) {
  const auto make =
      test::onebit_lamb({.learning_rate = 0.01, .freeze = {.step = 2}});
  const Indebted saved = indebted(make, 4);
  const auto scales = saved.state.array("scaling_coeff").as<double>();
  std::vector<double> owed = saved.owed;
  for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
    const Parameter& p = layout.parameters()[i];
    for (std::size_t k = 0; k < p.size; ++k)
      owed[p.offset + k] /= static_cast<float>(scales[i]);
  }
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    Twins twins(comm, make, saved);
    twins.step(5);
    expect_near(twins.delivered(), owed);
    EXPECT_FALSE(twins.owes());
  });
}

TEST(Debt, OfZeroOneAdamBeforeItsFreezeIsOfMomentum) {
  const auto make = test::zero_one_adam(
      {.learning_rate = 0.01, .var_freeze_step = 100, .var_update_scaler = 2});
  const Indebted saved = indebted(make, 4);
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    Twins twins(comm, make, saved);
    EXPECT_EQ(twins.with->progress().phase, Phase::kCompressed);
    twins.step(5);
    expect_near(twins.delivered(), saved.owed);
    EXPECT_FALSE(twins.owes());
  });
}

// A sync exchanges u d, and gives both theta and m; a group that rests is paid
// when it moves again.
TEST(Debt, OfZeroOneAdamIsDeliveredByTheSyncOfEachGroup) {
  const auto make = test::zero_one_adam({.learning_rate = 0.01,
                                         .var_freeze_step = 2,
                                         .local_step_scaler = 2,
                                         .local_step_clipper = 2});
  const Indebted saved = indebted(make, 4);  // a sync
  const auto d = saved.state.array("denominator").as<float>();
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    for (const bool by_step : {true, false}) {
      Twins twins(comm, make, saved);
      const auto owe_by_group = [&](std::size_t group) {
        std::vector<double> owed(layout.size());
        for (std::size_t i = 0; i < owed.size(); ++i)
          if (layout.parameter_at(i).group == group)
            owed[i] = saved.owed[i] / d[i];
        return owed;
      };
      const auto moved = [&] {
        std::vector<double> sum;
        for (std::size_t i = 0; i < layout.size(); ++i)
          sum.push_back(double{twins.params_with[i]} - twins.params_without[i]);
        return sum;
      };
      const auto rest = [&](double rate) {
        twins.with->groups().set_learning_rate(1, rate);
        twins.without->groups().set_learning_rate(1, rate);
      };
      rest(0);
      EXPECT_EQ(twins.with->progress().phase, Phase::kLocal);
      twins.step(5);
      if (by_step) {
        EXPECT_EQ(twins.with->progress().phase, Phase::kCompressed);
        twins.step(6);
      } else {
        optim::synchronize(*twins.with, twins.params_with);
        optim::synchronize(*twins.without, twins.params_without);
      }
      expect_near(moved(), owe_by_group(0));
      EXPECT_TRUE(twins.owes());
      rest(0.01);
      while (twins.owes() && twins.with->progress().steps < 20)
        twins.step(twins.with->progress().steps + 1);
      EXPECT_FALSE(twins.owes());
    }
  });
}

}  // namespace
}  // namespace thinwire::optim::debt_test
