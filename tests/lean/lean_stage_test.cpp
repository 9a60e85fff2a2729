// SPDX-License-Identifier: Apache-2.0
// Lean 1-bit Adam after a load: the caller's step and masks hold.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "lean/lean_plain.h"
#include "lean/lean_support.h"
#include "optim/low_bit/late_cases.h"
#include "optim/states.h"
#include "optim/support.h"

namespace thinwire::lean::lean_stage_test {
namespace {

using test::LeanRanks;
using test::LeanRun;

constexpr std::int64_t kSteps = 5;  // of the run that is saved
constexpr std::size_t kMasked = 40;

const std::vector<DType> kDtypes = {DType::kFloat32, DType::kBFloat16};
const std::vector<LeanRanks> kRanks = {LeanRanks{1}, LeanRanks{2}, LeanRanks{3},
                                       LeanRanks{4, 2}, LeanRanks{8, 4}};

LeanOnebitAdamOptions options(std::int64_t freeze_step) {
  return {.learning_rate = 0.02, .freeze = {.step = freeze_step}};
}

std::vector<float> grads(const LeanRun& run, std::int64_t t, int rank) {
  return test::gradient(run.layout.size(), t, rank);
}

optim::Notes load(LeanRun& to, const LeanRun& from) {
  std::memcpy(to.params.data(), from.params.data(), from.params.bytes());
  return to.optimizer->load_state_dict(copy_of(from.optimizer->state()));
}

void on_ranks(
    const std::function<void(comm::Communicator&, DType dtype)>& body) {
  for (const LeanRanks& ranks : kRanks)
    for (const DType dtype : kDtypes)
      test::run_lean_ranks(ranks, [&](auto& comm) { body(comm, dtype); });
}

TEST(LeanStage, EndsAtOnceIfTheNamedStepHasPassed) {
  on_ranks([](comm::Communicator& comm, DType dtype) {
    LeanRun named(comm, test::small_layout(), dtype, options(kSteps));
    LeanRun never(comm, test::small_layout(), dtype, options(100));
    LeanRun other(comm, test::small_layout(), dtype, options(kSteps - 1));
    for (std::int64_t t = 1; t <= kSteps; ++t) {
      named.step(grads(named, t, comm.rank()));
      never.step(grads(never, t, comm.rank()));
    }
    EXPECT_EQ(load(other, never).size(), 1u);
    EXPECT_EQ(other.optimizer->progress().phase, optim::Phase::kCompressed);
    for (std::int64_t t = kSteps + 1; t <= 9; ++t) {
      named.step(grads(named, t, comm.rank()));
      other.step(grads(other, t, comm.rank()));
      ASSERT_TRUE(test::same_bits<float>(other.full(), named.full())) << t;
    }
    EXPECT_EQ(other.optimizer->freeze()->frozen_at(), kSteps);
  });
}

TEST(LeanStage, ReturnsToExactStepsIfTheNamedStepLiesAhead) {
  on_ranks([](comm::Communicator& comm, DType dtype) {
    LeanRun run(comm, test::small_layout(), dtype, options(2));
    for (std::int64_t t = 1; t <= kSteps; ++t)
      run.step(grads(run, t, comm.rank()));
    LeanRun other(comm, test::small_layout(), dtype, options(8));
    const auto notes = load(other, run);
    EXPECT_EQ(other.optimizer->progress().freeze_step, 8);
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_NE(notes[0].find("denominators"), std::string::npos);
    // A state that is saved before the next step still has the codes.
    LeanRun again(comm, test::small_layout(), dtype, options(8));
    load(again, other);
    const std::vector<float> before = run.full();
    for (std::int64_t t = kSteps + 1; t <= 11; ++t) {
      const auto report = other.step(grads(other, t, comm.rank()));
      again.step(grads(again, t, comm.rank()));
      EXPECT_EQ(report.phase,
                t <= 8 ? optim::Phase::kExact : optim::Phase::kCompressed);
      const std::vector<float> now = other.full();
      EXPECT_TRUE(test::same_bits<float>(now, again.full())) << t;
      for (std::size_t i = 0; i < now.size(); ++i)
        ASSERT_LT(std::abs(now[i] - before[i]), 1.0f) << i << ' ' << t;
    }
    EXPECT_EQ(other.optimizer->freeze()->frozen_at(), 8);
  });
}

// Exact steps continue over the saved run's bits, unless the caller names
// others.
TEST(LeanStage, UsesTheStatesBitsUnlessTheyAreNamed) {
  const auto made = [](comm::Communicator& comm, DType dtype,
                       const optim::FreezeOptions& freeze) {
    return LeanRun(comm, test::late_layout(), dtype,
                   {.learning_rate = 0.02, .freeze = freeze});
  };
  const optim::FreezeOptions by_run{.total_steps = 30};  // 8 bits, to step 6
  for (const DType dtype : kDtypes)
    test::run_lean_ranks({2}, [&](comm::Communicator& comm) {
      for (const int saved : {0, 4, 8})
        for (const std::int64_t steps : {2, 7}) {
          SCOPED_TRACE(fmt::format("{} bits, {} steps", saved, steps));
          LeanRun run = made(comm, dtype, {.step = 6, .warmup_bits = saved});
          for (std::int64_t t = 1; t <= steps; ++t)
            run.step(grads(run, t, comm.rank()));
          LeanRun unnamed = made(comm, dtype, by_run);
          unnamed.optimizer->groups().set_weight_decay(0, 0.125);
          load(unnamed, run);
          if (steps == 2) {  // as versions up to 0.13 saved it
            const StateDict state = copy_of(run.optimizer->state());
            unnamed.optimizer->load_state_dict(
                test::without(state, "warmup_bits"));
          }
          EXPECT_EQ(unnamed.optimizer->groups().weight_decay(0), 0.125);
          unnamed.optimizer->groups().set_weight_decay(0, 0);
          LeanRun named =
              made(comm, dtype, {.step = 6, .warmup_bits = 8 - saved});
          load(named, run);
          for (std::int64_t t = steps + 1; t <= 8; ++t) {
            const auto want = run.step(grads(run, t, comm.rank()));
            const auto got = unnamed.step(grads(unnamed, t, comm.rank()));
            EXPECT_EQ(got.bits, want.bits);
            EXPECT_EQ(named.step(grads(named, t, comm.rank())).bits,
                      t <= 6 ? 8 - saved : 0);
            ASSERT_TRUE(test::same_bits<float>(unnamed.full(), run.full()))
                << t;
          }
          // Also if the next step is exact again.
          LeanRun again = made(comm, dtype, {.step = 20});
          load(again, run);
          EXPECT_EQ(again.step(grads(again, 9, comm.rank())).bits, saved);
        }
    });
}

LeanOnebitAdamOptions masked(bool is_masked, const ParameterLayout& layout) {
  LeanOnebitAdamOptions o = options(2);
  o.groups.resize(1);
  o.groups[0].exp_avg_mask.assign(layout.size(), 1.0f);
  if (is_masked)
    std::fill_n(o.groups[0].exp_avg_mask.end() - kMasked, kMasked, 0.0f);
  return o;
}

TEST(LeanMasks, OfTheScriptHoldAtALoadAndInEveryStep) {
  const ParameterLayout layout = test::small_layout();
  const auto last = [](const LeanRun& run) {
    const std::vector<float> all = run.full();
    return std::vector<float>(all.end() - kMasked, all.end());
  };
  on_ranks([&](comm::Communicator& comm, DType dtype) {
    for (const bool was_masked : {false, true}) {
      LeanRun run(comm, layout, dtype, masked(was_masked, layout));
      LeanRun other(comm, layout, dtype, masked(!was_masked, layout));
      for (std::int64_t t = 1; t <= kSteps; ++t)
        run.step(grads(run, t, comm.rank()));
      EXPECT_EQ(load(other, run).size(), 1u);
      const auto mask = masked(!was_masked, layout).groups[0].exp_avg_mask;
      run.optimizer->groups().set_exp_avg_mask(0, mask);
      optim::StepReport report;
      std::vector<float> before;
      for (std::int64_t t = kSteps + 1; t <= 9; ++t) {
        before = last(other);
        report = other.step(grads(other, t, comm.rank()));
        run.step(grads(run, t, comm.rank()));
      }
      EXPECT_EQ(report.masked, was_masked ? 0 : kMasked);
      EXPECT_EQ(last(other) == before, !was_masked);
      // What is left out is so from the very step on.
      if (!was_masked) {
        EXPECT_TRUE(test::same_bits<float>(other.full(), run.full()));
      }
    }
  });
}

}  // namespace
}  // namespace thinwire::lean::lean_stage_test
