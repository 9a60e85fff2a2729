// SPDX-License-Identifier: Apache-2.0
// A single rank compresses nothing. Residuals restored from a state of several
// ranks are added to its first update: y = x + e + d.
#include <gtest/gtest.h>

#include <cmath>

#include "optim/low_bit/cases.h"
#include "optim/states.h"

namespace thinwire::optim::restored_residuals_test {
namespace {

const ParameterLayout layout = test::grouped_layout();

struct Saved {
  StateDict state;
  std::vector<float> params;
  std::vector<double> residuals;  // e + d of each element, 0 if inactive
};

void step(Optimizer& optimizer, std::vector<float>& params, std::int64_t t,
          int rank) {
  auto grads = test::gradient_with_gaps(layout, t, rank);
  optimizer.step(params, grads);
}

// Returns the state of a single rank after `steps` steps, with residuals as
// after a load.
Saved saved_after(const test::MakeOptimizer& make, std::int64_t steps) {
  Saved saved;
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
      saved.residuals.push_back(takes_part[i] == 1 ? double{e[i]} + d[i] : 0);
    saved.state.put("worker_error", e);
    saved.state.put("server_error", d);
  });
  return saved;
}

// Two optimizers that take the same steps; only `with` has restored residuals.
struct Twins {
  std::unique_ptr<Optimizer> with, without;
  std::vector<float> params_with, params_without;

  Twins(comm::Communicator& comm, const test::MakeOptimizer& make,
        const Saved& saved)
      : with(make(comm, layout)),
        without(make(comm, layout)),
        params_with(saved.params),
        params_without(saved.params) {
    with->adopt(saved.state.part(""))();
    without->adopt(test::without(test::without(saved.state, "worker_error"),
                                 "server_error"))();
    EXPECT_TRUE(has_residuals());
  }
  void step(std::int64_t t) {
    restored_residuals_test::step(*with, params_with, t, 0);
    restored_residuals_test::step(*without, params_without, t, 0);
  }
  [[nodiscard]] bool has_residuals() const {
    const State state = with->state();
    EXPECT_EQ(state.find("worker_error") == nullptr,
              state.find("server_error") == nullptr);
    return state.find("worker_error") != nullptr;
  }
  // Returns exp_avg less that of `without`.
  [[nodiscard]] std::vector<double> added() const {
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

TEST(RestoredResiduals, OfOnebitAdamAreAddedOnce) {
  const auto make =
      test::onebit_adam({.learning_rate = 0.01, .freeze = {.step = 2}});
  const Saved saved = saved_after(make, 4);
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    Twins twins(comm, make, saved);
    twins.step(5);
    expect_near(twins.added(), saved.residuals);
    EXPECT_FALSE(twins.has_residuals());
    twins.step(6);
    std::vector<double> decayed = saved.residuals;
    for (double& value : decayed) value *= 0.9;
    expect_near(twins.added(), decayed);
  });
}

TEST(RestoredResiduals, OfOnebitLambAreScaledLikeItsMomenta) {
  const auto make =
      test::onebit_lamb({.learning_rate = 0.01, .freeze = {.step = 2}});
  const Saved saved = saved_after(make, 4);
  const auto scales = saved.state.array("scaling_coeff").as<double>();
  std::vector<double> added = saved.residuals;
  for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
    const Parameter& p = layout.parameters()[i];
    for (std::size_t k = 0; k < p.size; ++k)
      added[p.offset + k] /= static_cast<float>(scales[i]);
  }
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    Twins twins(comm, make, saved);
    twins.step(5);
    expect_near(twins.added(), added);
    EXPECT_FALSE(twins.has_residuals());
  });
}

// A sync exchanges u d, and gives both theta and m. A group whose learning rate
// is 0 gets its residuals when it moves again.
TEST(RestoredResiduals, OfZeroOneAdamAreAddedByTheSyncOfEachGroup) {
  const auto make = test::zero_one_adam({.learning_rate = 0.01,
                                         .var_freeze_step = 2,
                                         .local_step_scaler = 2,
                                         .local_step_clipper = 2});
  const Saved saved = saved_after(make, 4);  // a sync
  const auto d = saved.state.array("denominator").as<float>();
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    for (const bool by_step : {true, false}) {
      Twins twins(comm, make, saved);
      const auto of_group = [&](std::size_t group) {
        std::vector<double> added(layout.size());
        for (std::size_t i = 0; i < added.size(); ++i)
          if (layout.parameter_at(i).group == group)
            added[i] = saved.residuals[i] / d[i];
        return added;
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
      expect_near(moved(), of_group(0));
      EXPECT_TRUE(twins.has_residuals());
      rest(0.01);
      while (twins.has_residuals() && twins.with->progress().steps < 20)
        twins.step(twins.with->progress().steps + 1);
      EXPECT_FALSE(twins.has_residuals());
    }
  });
}

TEST(RestoredResiduals, OfGradientsAreAddedOnceIfTheStepIsReducedEarly) {
  const auto make = test::onebit_adam(
      {.learning_rate = 0.01, .freeze = {.step = 10, .warmup_bits = 8}});
  const Saved saved = saved_after(make, 2);
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    const auto early = make(comm, layout);
    const auto whole = make(comm, layout);
    std::vector<float> params_early = saved.params;
    std::vector<float> params_whole = saved.params;
    early->adopt(saved.state.part(""))();
    whole->adopt(saved.state.part(""))();
    EXPECT_NE(whole->state().find("worker_error"), nullptr);
    for (const std::int64_t t : {3, 4}) {
      auto grads = test::gradient_with_gaps(layout, t, 0);
      early->early()->reduce(grads, {0, layout.size()});
      early->step(params_early, grads);
      step(*whole, params_whole, t, 0);
      EXPECT_EQ(params_early, params_whole) << t;
      EXPECT_EQ(early->state().find("worker_error"), nullptr);
    }
  });
}

}  // namespace
}  // namespace thinwire::optim::restored_residuals_test
