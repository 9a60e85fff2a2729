// SPDX-License-Identifier: Apache-2.0
// A run that is saved after any step and continues in another optimizer has the
// same bits as one that was never interrupted.
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "optim/low_bit/cases.h"
#include "optim/states.h"
#include "support/errors.h"

namespace thinwire::optim::resume_test {
namespace {

using test::LowBitCase;

class LowBitResume
    : public ::testing::TestWithParam<std::tuple<int, LowBitCase>> {};

INSTANTIATE_TEST_SUITE_P(
    All, LowBitResume,
    ::testing::Combine(::testing::Values(1, 2, 3),
                       ::testing::ValuesIn(test::resumed_cases())),
    test::kNameAndWorld);

enum class Steps { kPlain, kSynchronized, kScaled };

// An optimizer with the parameters that it has brought about so far.
struct Trained {
  std::unique_ptr<Optimizer> optimizer;
  std::vector<float> params;

  void step(std::int64_t t, int rank, Steps kind = Steps::kPlain) {
    for (std::size_t g = 0; g < 2; ++g)
      optimizer->groups().set_learning_rate(g, rate(t, g));
    auto grads = test::gradient_with_gaps(test::grouped_layout(), t, rank);
    // Two elements of "dead" come late, one of them in a local step.
    for (const auto& [element, first] : {std::pair(1060u, 5), {1058u, 11}})
      if (t >= first && (t > first || rank == 0)) grads[element] = 0.5f;
    if (kind == Steps::kScaled) return scaled_step(t, rank, grads);
    optimizer->step(params, grads);
    if (kind == Steps::kSynchronized) optim::synchronize(*optimizer, params);
  }
  // Takes a step of fp16 training, whose exchange begins before it. The loss
  // scale falls after two overflows and grows again.
  void scaled_step(std::int64_t t, int rank, std::vector<float>& grads) {
    const double scale = t == 4 || t == 6 || t == 7 ? 64 : 128;
    for (float& g : grads) g *= static_cast<float>(scale);
    const bool overflows = t == 3 || t == 5 || t == 8;
    if (overflows && rank == 0)
      grads[7] = std::numeric_limits<float>::infinity();
    if (optimizer->early()->reduces())
      optimizer->early()->reduce(View(grads), {0, grads.size()});
    const StepReport report =
        optimizer->step({.params = params,
                         .grads = View(grads),
                         .loss_scale = scale,
                         .skip_if_any_rank_nonfinite = true});
    EXPECT_EQ(report.applied, !overflows) << t;
  }
  // Group 1 rests for some steps.
  static double rate(std::int64_t t, std::size_t group) {
    if (group == 1 && (t == 4 || (t >= 12 && t <= 14))) return 0;
    return 0.001 * static_cast<double>(30 - t);
  }
};

void expect_bit_equal(comm::Communicator& comm, const LowBitCase& tested,
                      Steps kind) {
  const ParameterLayout layout = test::grouped_layout();
  Trained main{tested.make(comm, layout), test::normal(layout.size(), 3)};
  std::vector<Trained> resumed;
  const auto resume = [&] {
    Trained& run = resumed.emplace_back();
    run.optimizer = tested.make(comm, layout);
    run.optimizer->load_state_dict(copy_of(main.optimizer->state()));
    run.params = main.params;
    EXPECT_EQ(run.optimizer->progress().phase,
              main.optimizer->progress().phase);
    EXPECT_TRUE(test::same_state(copy_of(run.optimizer->state()),
                                 copy_of(main.optimizer->state())));
  };
  for (std::int64_t t = 1; t <= tested.steps; ++t) {
    if (kind != Steps::kSynchronized || t % 5 == 1) resume();
    main.step(t, comm.rank(), kind);
    for (std::size_t i = 0; i < resumed.size(); ++i) {
      resumed[i].step(t, comm.rank(), kind);
      ASSERT_EQ(resumed[i].params, main.params)
          << "run " << i << ", step " << t << ", kind "
          << static_cast<int>(kind);
    }
  }
  for (const Trained& run : resumed)
    EXPECT_TRUE(test::same_state(copy_of(run.optimizer->state()),
                                 copy_of(main.optimizer->state())));
}

TEST_P(LowBitResume, ContinuesBitEqualFromEveryStep) {
  const auto& [world, tested] = GetParam();
  for (const Steps kind : {Steps::kPlain, Steps::kSynchronized, Steps::kScaled})
    comm::run_local_ranks(world, [&, &test_case = tested](auto& comm) {
      expect_bit_equal(comm, test_case, kind);
    });
}

// Every state of a run, saved on each rank.
std::vector<std::vector<StateDict>> states_of(const LowBitCase& tested,
                                              int world) {
  const ParameterLayout layout = test::grouped_layout();
  std::vector<std::vector<StateDict>> states(static_cast<std::size_t>(world));
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    Trained run{tested.make(comm, layout), test::normal(layout.size(), 3)};
    for (std::int64_t t = 1; t <= tested.steps; ++t) {
      run.step(t, comm.rank());
      states[static_cast<std::size_t>(comm.rank())].push_back(
          copy_of(run.optimizer->state()));
    }
  });
  return states;
}

class LowBitStates : public ::testing::TestWithParam<LowBitCase> {};
INSTANTIATE_TEST_SUITE_P(All, LowBitStates,
                         ::testing::ValuesIn(test::resumed_cases()),
                         [](const auto& tested) { return tested.param.name; });

void expect_refused(Optimizer& optimizer, const StateDict& state,
                    std::initializer_list<std::string_view> parts) {
  const StateDict before = copy_of(optimizer.state());
  test::expect_error(ErrorCode::kCorruptCheckpoint, parts,
                     [&] { optimizer.load_state_dict(state); });
  EXPECT_TRUE(test::same_state(copy_of(optimizer.state()), before));
}

TEST_P(LowBitStates, RefuseMissingParts) {
  // Their absence says something: nothing masked, nothing compressed yet, or
  // the state of an optimizer without that option.
  const std::set<std::string> optional = {
      "participation",     "worker_error",       "exp_avg_sq",
      "freeze_step",       "var_freeze_step",    "var_update_scaler",
      "local_step_scaler", "local_step_clipper", "warmup_bits",
      "clip_reference",    "last_loss_scale"};
  const auto states = states_of(GetParam(), 2);
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const auto optimizer = GetParam().make(comm, test::grouped_layout());
    const auto& own = states[static_cast<std::size_t>(comm.rank())];
    const auto lacks_each = [&](const StateDict& state) {
      for (const auto& [key, value] : state.arrays())
        if (optional.count(key) == 0)
          expect_refused(*optimizer, test::without(state, key), {key});
      for (const auto& [key, value] : state.scalars())
        if (optional.count(key) == 0)
          expect_refused(*optimizer, test::without(state, key), {key});
    };
    lacks_each(own.back());
    expect_refused(*optimizer, test::without(own.front(), "exp_avg_sq"),
                   {"exp_avg_sq"});
    optimizer->load_state_dict(own[own.size() - 3]);
    lacks_each(own.back());
  });
}

TEST_P(LowBitStates, RefuseAnotherRankWorldLayoutOrOptimizer) {
  const auto states = states_of(GetParam(), 2);
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const auto optimizer = GetParam().make(comm, test::grouped_layout());
    const auto mine = static_cast<std::size_t>(comm.rank());
    expect_refused(*optimizer, states[1 - mine].back(), {"of 2"});
    StateDict other = test::without(states[mine].back(), "");
    other.put_text("optimizer", "another");
    expect_refused(*optimizer, other, {"optimizer", "another"});
    other = test::without(states[mine].back(), "");
    other.put_text("layout", "p 3 group 0\n");
    expect_refused(*optimizer, other, {"layout"});
    other = test::without(states[mine].back(), "");
    other.put("worker_error", std::vector<float>(3));
    expect_refused(*optimizer, other, {"worker_error"});
    expect_refused(*optimizer, StateDict(), {"layout"});
  });
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    const auto optimizer = GetParam().make(comm, test::grouped_layout());
    expect_refused(*optimizer, states[0].back(), {"of 2", "of 1"});
  });
}

TEST(AlteredStates, AreRefused) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    ZeroOneAdam optimizer(comm, test::small_layout(), {});
    std::vector<float> params = test::normal(test::small_layout().size(), 3);
    auto grads = test::gradient(params.size(), 1, comm.rank());
    grads[3] = 0;  // late
    optimizer.step(params, grads);
    const StateDict good = copy_of(optimizer.state());
    const auto altered = [&](const char* key, auto values) {
      StateDict state = test::without(good, key);
      state.put(key, values);
      expect_refused(optimizer, state, {key});
    };
    auto out = good.array("participation").as<std::uint8_t>();
    std::vector<std::uint8_t> participation(out.begin(), out.end());
    EXPECT_EQ(participation[3], 2);
    participation[3] = 4;
    altered("participation", participation);
    const auto medians = good.array("denominator_medians").size();
    altered("denominator_medians", std::vector<float>(medians, NAN));
    altered("denominator_floors", std::vector<float>(medians, -1.0f));
    altered("denominator_floors.ranges", std::vector<std::int64_t>{0, 1});
    using Ranges = std::vector<std::int64_t>;
    for (const Ranges& ranges : {Ranges{5, 1, 4, 1}, Ranges{1 << 30, 1},
                                 Ranges{-1, 1}, Ranges{3, 2}, Ranges{3}})
      altered("heavy_factors.ranges", ranges);
    StateDict state = test::without(good, "");
    state.put("late_gradients", std::vector<std::uint8_t>{1});
    expect_refused(optimizer, state, {"late_gradients"});  // without ranges
    state.put("late_gradients.ranges", Ranges{-1, 1});
    expect_refused(optimizer, state, {"late_gradients.ranges", "-1"});
    for (const int ranks : {-1, 0}) {
      state = test::without(good, "");
      state.put_integer("ranks_per_host", ranks);
      expect_refused(optimizer, state, {"ranks_per_host must be >= 1"});
      state.put_integer(kSavedWorld, 2);  // as a checkpoint does
      expect_refused(optimizer, state, {"ranks_per_host must be >= 1"});
    }
    EXPECT_NO_THROW(optimizer.load_state_dict(good));
  });
}

// Of four equal blocks a rank serves two in either bucket size, but not the
// same two.
TEST(LowBitResiduals, RequireTheirBuckets) {
  const ParameterLayout layout =
      ParameterLayout::of({{"a", {32}}, {"b", {32}}, {"c", {32}}, {"d", {32}}});
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    ZeroOneAdamOptions options{.var_update_scaler = 1};
    options.compression.exchange.bucket_elements = 64;
    ZeroOneAdam one(comm, layout, options);
    std::vector<float> params(128);
    for (std::int64_t t = 1; t <= 3; ++t)
      (void)test::step_of(one, params, t, comm.rank());
    options.compression.exchange.bucket_elements = 128;
    ZeroOneAdam two(comm, layout, options);
    expect_refused(two, copy_of(one.state()),
                   {"bucket size", "128", "or of other hosts"});
    options.compression.exchange.bucket_elements = 70;  // the same buckets
    ZeroOneAdam three(comm, layout, options);
    EXPECT_NO_THROW(three.load_state_dict(copy_of(one.state())));
  });
}

}  // namespace
}  // namespace thinwire::optim::resume_test
