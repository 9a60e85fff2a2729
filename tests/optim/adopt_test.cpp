// SPDX-License-Identifier: Apache-2.0
// States of one optimizer adopted by another, and in other precision.
#include <gtest/gtest.h>

#include "optim/low_bit/cases.h"
#include "optim/other_ranks.h"
#include "optim/states.h"
#include "support/errors.h"

namespace thinwire::optim::adopt_test {
namespace {

using test::expect_error;

constexpr auto kCorrupt = ErrorCode::kCorruptCheckpoint;
const ParameterLayout layout = test::grouped_layout();

struct Trained {
  std::unique_ptr<Optimizer> optimizer;
  std::vector<float> params = test::normal(layout.size(), 3);

  void steps(std::int64_t from, std::int64_t to, int rank) {
    for (std::int64_t t = from; t < to; ++t) {
      auto grads = test::gradient_with_gaps(layout, t, rank);
      optimizer->step(params, grads);
    }
  }
};

Trained started(comm::Communicator& comm, const test::MakeOptimizer& make) {
  return {make(comm, layout)};
}

// Goes on from what `from` has saved on this rank.
Trained continued(comm::Communicator& comm, const test::MakeOptimizer& make,
                  const Trained& from) {
  Trained run{make(comm, layout), from.params};
  run.optimizer->adopt(copy_of(from.optimizer->state()))();
  return run;
}

void expect_refused(const Trained& from, Optimizer& to,
                    std::initializer_list<std::string_view> parts) {
  const StateDict before = copy_of(to.state());
  expect_error(kCorrupt, parts, [&] {
    static_cast<void>(to.adopt(copy_of(from.optimizer->state())));
  });
  EXPECT_TRUE(test::same_state(copy_of(to.state()), before));
}

// ---- between an exact optimizer and the 1-bit one that begins as it does

struct Pair {
  std::string name;
  test::MakeOptimizer exact;
  std::function<test::MakeOptimizer(std::int64_t freeze_step)> onebit;
};

std::vector<Pair> pairs() {
  return {{"adam", test::exact_adam({.learning_rate = 0.01}),
           [](std::int64_t freeze_step) {
             return test::onebit_adam(
                 {.learning_rate = 0.01, .freeze = {.step = freeze_step}});
           }},
          {"lamb", test::exact_lamb({.learning_rate = 0.01}),
           [](std::int64_t freeze_step) {
             return test::onebit_lamb(
                 {.learning_rate = 0.01, .freeze = {.step = freeze_step}});
           }}};
}

class Warmup : public ::testing::TestWithParam<Pair> {};
INSTANTIATE_TEST_SUITE_P(All, Warmup, ::testing::ValuesIn(pairs()),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(Warmup, ContinuesWhereTheExactOptimizerEnded) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Trained exact = started(comm, GetParam().exact);
    exact.steps(1, 5, comm.rank());
    // Its freeze is overdue: one exact step precedes it.
    Trained onebit = continued(comm, GetParam().onebit(2), exact);
    EXPECT_EQ(onebit.optimizer->progress().steps, 4);
    EXPECT_EQ(onebit.optimizer->progress().phase, Phase::kExact);
    exact.steps(5, 6, comm.rank());
    onebit.steps(5, 6, comm.rank());
    EXPECT_EQ(onebit.params, exact.params);
    EXPECT_EQ(onebit.optimizer->progress().phase, Phase::kCompressed);
    onebit.steps(6, 9, comm.rank());
    std::vector<float> first = onebit.params;
    comm.broadcast(first, 0);
    EXPECT_EQ(onebit.params, first);
  });
}

TEST_P(Warmup, OfAnAutomaticFreezeBeginsItsHistoryNow) {
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    Trained exact = started(comm, GetParam().exact);
    exact.steps(1, 5, comm.rank());
    const Trained onebit =
        continued(comm, GetParam().onebit(kAutoFreeze), exact);
    const StateDict state = copy_of(onebit.optimizer->state());
    EXPECT_EQ(state.array("exp_avg_sq_norms").size(), 0u);
    EXPECT_EQ(state.integer("frozen_at"), 0);
    if (GetParam().name != "lamb") return;
    for (const std::int64_t count :
         state.array("lamb_coeff_count").as<std::int64_t>())
      EXPECT_EQ(count, 0);
  });
}

TEST_P(Warmup, MayBecomeExactAgainOnlyBeforeTheFreeze) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Trained onebit = started(comm, GetParam().onebit(5));
    onebit.steps(1, 5, comm.rank());
    Trained exact = continued(comm, GetParam().exact, onebit);
    exact.steps(5, 6, comm.rank());
    onebit.steps(5, 6, comm.rank());  // the last exact one
    EXPECT_EQ(exact.params, onebit.params);
    expect_refused(onebit, *exact.optimizer,
                   {"the variance was given up at step 5",
                    "load with what = kWeights (Python: weights_only=True), or "
                    "a checkpoint before it"});
  });
}

TEST(OtherOptimizers, AreRefused) {
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    std::vector<Trained> runs;
    for (const auto& kind : test::all_optimizers({}))
      runs.push_back(started(comm, kind.make));
    for (Trained& run : runs) run.steps(1, 3, 0);
    for (std::size_t from = 0; from < runs.size(); ++from)
      for (std::size_t to = 0; to < runs.size(); ++to) {
        const bool have_one_rule = from % 2 == to % 2 && from < 4 && to < 4;
        if (from == to || have_one_rule) continue;
        expect_refused(runs[from], *runs[to].optimizer,
                       {"the state's optimizer is", "load with what"});
      }
  });
}

// ---- 16 bits

TEST(StateDtype, OfMomentsWidensAndRoundsIfAllowed) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    const auto of = [](DType dtype) {
      return test::exact_adam({.learning_rate = 0.01, .state_dtype = dtype});
    };
    const auto half = of(DType::kBFloat16)(comm, layout);
    Trained wide = started(comm, of(DType::kFloat32));
    wide.steps(1, 4, comm.rank());
    expect_refused(wide, *half, {"exp_avg", "bfloat16", "allow_rounding"});
    StateDict state = copy_of(wide.optimizer->state());
    state.put_integer("allow_rounding", 1);
    half->adopt(std::move(state))();
    const StateDict rounded = copy_of(half->state());
    for (const char* name : {"exp_avg", "exp_avg_sq"}) {
      const ConstView values = rounded.array(name);
      const StateDict exact = copy_of(wide.optimizer->state());
      ASSERT_EQ(values.dtype(), DType::kBFloat16);
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(to_float(values.as<BFloat16>()[i]),
                  to_float(to_bfloat16(exact.array(name).as<float>()[i])));
    }
    // Back again nothing is lost.
    wide.optimizer->adopt(copy_of(half->state()))();
    const StateDict widened = copy_of(wide.optimizer->state());
    const auto m = widened.array("exp_avg").as<float>();
    for (std::size_t i = 0; i < m.size(); ++i)
      ASSERT_EQ(m[i], to_float(rounded.array("exp_avg").as<BFloat16>()[i]));
  });
}

TEST(Adopting, ChangesNothingUntilItIsApplied) {
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    for (const auto& kind :
         test::all_optimizers({.freeze_step = 2, .var_freeze_step = 2})) {
      Trained run = started(comm, kind.make);
      run.steps(1, 4, 0);
      const StateDict before = copy_of(run.optimizer->state());
      Trained other = started(comm, kind.make);
      other.steps(1, 6, 0);
      const StateDict after = copy_of(other.optimizer->state());
      const auto adoption =
          run.optimizer->adopt(copy_of(other.optimizer->state()));
      EXPECT_TRUE(test::same_state(copy_of(run.optimizer->state()), before));
      adoption();
      EXPECT_TRUE(test::same_state(copy_of(run.optimizer->state()), after));
    }
  });
}

}  // namespace
}  // namespace thinwire::optim::adopt_test
