// SPDX-License-Identifier: Apache-2.0
// ExchangeOptions::under_next_step: 1-bit Adam's momentum travels while the
// next gradients are computed, and each rank goes on with its own.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "optim/low_bit/late_cases.h"
#include "optim/naive/drive.h"
#include "optim/naive/onebit_adam.h"
#include "support/errors.h"
#include "support/kept_log.h"
#include "thinwire/core/memory.h"

namespace thinwire::optim::under_next_step_test {
namespace {

using test::Drive;
using test::Ranks;
using Floats = std::vector<float>;

constexpr std::int64_t kFreeze = 3;

OnebitAdamOptions plain_options() {
  OnebitAdamOptions o{
      .learning_rate = 0.02, .weight_decay = 0.01, .freeze = {.step = kFreeze}};
  o.groups.resize(2);
  o.compression.exchange.under_next_step = true;
  return o;
}

struct Case {
  std::string name;
  OnebitAdamOptions options;
};

std::vector<Case> cases() {
  const auto with = [](std::string name, auto change) {
    Case made{std::move(name), plain_options()};
    change(made.options, made.options.compression.exchange);
    return made;
  };
  return {with("plain", [](auto&, auto&) {}),
          with("masks",
               [](auto& o, auto& exchange) {
                 o = test::with_masks(test::with_second_group(o),
                                      test::grouped_layout());
                 exchange.bucket_elements = 400;
                 exchange.num_threads = 3;
               }),
          with("bf16",
               [](auto& o, auto& exchange) {
                 o.compression.residual_dtype = DType::kBFloat16;
                 exchange.bucket_elements = 1;
               }),
          with("clipped",
               [](auto&, auto& exchange) {
                 exchange.max_grad_norm = 5;
                 exchange.lagged_clipping = true;
               }),
          with("few_bits", [](auto& o, auto&) { o.freeze.warmup_bits = 8; })};
}

// Ranks have gaps, a late element, and an overflow in step 8.
Floats eventful(const ParameterLayout& layout, std::int64_t t, int rank) {
  Floats g = test::late_on_one_rank(layout, t, rank);
  if (t == 8 && rank == 0) g[4] = INFINITY;
  return g;
}

// Plain loops of hosts do not know their ranks' norms, which calibrate.
OnebitAdamOptions of_plain_loops(OnebitAdamOptions o, Ranks ranks) {
  if (ranks.per_host > 1) o.compression.exchange.max_grad_norm = 0;
  return o;
}

class UnderNextStepRanks
    : public ::testing::TestWithParam<std::tuple<Ranks, Case>> {};
INSTANTIATE_TEST_SUITE_P(
    All, UnderNextStepRanks,
    ::testing::Combine(::testing::Values(Ranks{1, 1}, Ranks{2, 1}, Ranks{3, 1},
                                         Ranks{4, 1}, Ranks{2, 2}),
                       ::testing::ValuesIn(cases())),
    [](const auto& tested) {
      const Ranks& ranks = std::get<0>(tested.param);
      return fmt::format("{}_{}x{}", std::get<1>(tested.param).name,
                         ranks.hosts, ranks.per_host);
    });

TEST_P(UnderNextStepRanks, HasTheBitsOfPlainLoops) {
  const auto& [ranks, tested] = GetParam();
  const OnebitAdamOptions options = of_plain_loops(tested.options, ranks);
  const ParameterLayout layout = test::grouped_layout();
  for (const bool synchronizes : {false, true})
    test::expect_plain_loops<test::naive::OnebitAdam>(
        ranks, layout,
        {.steps = 13,
         .gradient = eventful,
         .learning_rate =
             [](std::int64_t t, std::size_t) {
               return 0.01 * static_cast<double>(20 - t);
             },
         .synchronizes =
             [=](std::int64_t t) { return synchronizes && t % 4 == 1; }},
        options, test::onebit_adam);
}

TEST_P(UnderNextStepRanks, ShowsTheCommonParametersBetweenSteps) {
  const auto& [ranks, tested] = GetParam();
  const OnebitAdamOptions options = of_plain_loops(tested.options, ranks);
  const ParameterLayout layout = test::grouped_layout();
  const Drive run{.steps = 10, .gradient = eventful};
  struct Seen {
    Floats common;
    std::int64_t behind = 0;
    bool is_applied = false;
  };
  const auto got = test::drive<Seen>(
      ranks, layout, run, test::onebit_adam(options),
      [](Optimizer& optimizer, const StepReport& report, const Floats& params) {
        const auto common =
            exchanged_params(optimizer, std::span<const float>(params))
                .as<float>();
        return Seen{Floats(common.begin(), common.end()),
                    steps_behind(optimizer), report.applied};
      });
  test::naive::OnebitAdam naive(ranks.hosts, layout, options,
                                test::normal(layout.size(), 3));
  for (std::int64_t t = 1; t <= run.steps; ++t) {
    (void)naive.step(run.of_workers(ranks, layout, t));
    for (const Seen& seen : got[static_cast<std::size_t>(t - 1)]) {
      ASSERT_EQ(seen.common, naive.common()) << "step " << t;
      EXPECT_EQ(seen.behind == 1,
                ranks.size() > 1 && t > kFreeze && seen.is_applied)
          << "step " << t;
    }
  }
}

TEST(UnderNextStep, ASkippedStepMakesParametersEqualAndNamesTheRank) {
  const ParameterLayout layout = test::grouped_layout();
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    OnebitAdam optimizer(comm, layout, plain_options());
    Floats params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 6; ++t) {
      Floats grads = test::gradient(layout.size(), t, comm.rank());
      if (t == 6 && comm.rank() == 2) grads[9] = NAN;
      Buffer low(layout.size(), DType::kFloat16);
      const Floats before = params;
      std::size_t told = 0;
      const StepReport report = optimizer.step(
          {.params = params,
           .grads = View(grads),
           .low_precision = low.view(),
           .final_range = [&](Range range) { told += range.size; }});
      if (t < 6) {
        EXPECT_EQ(told, layout.size()) << t;
        continue;
      }
      EXPECT_FALSE(report.applied);
      EXPECT_EQ(report.nonfinite_rank, 2);
      EXPECT_EQ(steps_behind(optimizer), 0);
      EXPECT_NE(params, before);
      Floats all(3 * layout.size());
      comm.all_gather(View(params), View(all));
      for (std::size_t i = 0; i < all.size(); ++i)
        ASSERT_EQ(all[i], params[i % layout.size()]);
    }
  });
}

// The common parameters and a state, restored by the next run.
TEST(UnderNextStep, RepeatsItsOwnStepOverLoadedParameters) {
  const ParameterLayout layout = test::grouped_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    OnebitAdam first(comm, layout, plain_options());
    Floats params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 6; ++t)
      (void)test::step_of(first, params, t, comm.rank());
    const auto common =
        exchanged_params(first, std::span<const float>(params)).as<float>();
    Floats loaded(common.begin(), common.end());
    OnebitAdam second(comm, layout, plain_options());
    second.load_state_dict(copy_of(first.state()));
    second.local_steps()->repeat(loaded);
    EXPECT_EQ(loaded, params);
    for (std::int64_t t = 7; t <= 9; ++t) {
      (void)test::step_of(first, params, t, comm.rank());
      (void)test::step_of(second, loaded, t, comm.rank());
      ASSERT_EQ(loaded, params) << t;
    }
  });
}

TEST(UnderNextStep, ComparesTheCommonParameters) {
  const ParameterLayout layout = test::grouped_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    OnebitAdamOptions o = plain_options();
    o.compression.exchange.verify_every = 1;
    OnebitAdam optimizer(comm, layout, o);
    Floats params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 6; ++t)
      EXPECT_TRUE(test::step_of(optimizer, params, t, comm.rank()).applied);
    // Only this rank's own parameters: nothing depends on them.
    if (comm.rank() == 0) params[3] += 1;
    EXPECT_TRUE(test::step_of(optimizer, params, 7, comm.rank()).applied);
  });
}

TEST(UnderNextStep, MayBeDestroyedInFlight) {
  const ParameterLayout layout = test::grouped_layout();
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    {
      OnebitAdam optimizer(comm, layout, plain_options());
      Floats params = test::normal(layout.size(), 3);
      for (std::int64_t t = 1; t <= 5; ++t)
        (void)test::step_of(optimizer, params, t, comm.rank());
    }
    comm.barrier();
  });
}

// Rank 1 ends when it has queued the first of several buckets. It waits until
// rank 0's step has ended, which would otherwise report the failure itself.
TEST(UnderNextStep, LogsThatTheLastExchangeFailedWhenItIsDestroyed) {
  const ParameterLayout layout = test::grouped_layout();
  OnebitAdamOptions o = plain_options();
  o.compression.exchange.bucket_elements = 1;
  test::KeptLog log(LogLevel::kWarning);
  std::latch rank_0_has_stepped(1);
  EXPECT_ANY_THROW(comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    OnebitAdam optimizer(comm, layout, o);
    Floats params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= kFreeze + 1; ++t) {
      Floats grads = test::gradient(layout.size(), t, comm.rank());
      StepInput in{.params = params, .grads = View(grads)};
      if (comm.rank() == 1 && t > kFreeze)
        in.final_range = [&](Range) {
          rank_0_has_stepped.wait();
          throw std::runtime_error("disk full");
        };
      (void)optimizer.step(in);
      if (comm.rank() == 0 && t > kFreeze) rank_0_has_stepped.count_down();
    }
  }));
  const auto lines = log.with("exchange of the last step was dropped");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("disk full"), std::string::npos) << lines[0];
}

TEST(UnderNextStep, AnotherOptimizerRefusesAStateOfDifferentParameters) {
  const ParameterLayout layout = test::grouped_layout();
  OnebitAdamOptions without = plain_options();
  without.compression.exchange.under_next_step = false;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    OnebitAdam first(comm, layout, plain_options());
    OnebitAdam second(comm, layout, without);
    Floats params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 6; ++t)
      (void)test::step_of(first, params, t, comm.rank());
    test::expect_error(ErrorCode::kCorruptCheckpoint,
                       {"compressed_under_next_step", "synchronize()"},
                       [&] { second.load_state_dict(copy_of(first.state())); });
    EXPECT_EQ(second.progress().steps, 0);
    // A checkpoint has the common parameters, which fit.
    const auto common =
        exchanged_params(first, std::span<const float>(params)).as<float>();
    Floats loaded(common.begin(), common.end());
    (void)second.adopt(copy_of(first.state()))();
    synchronize(first, params);
    EXPECT_EQ(loaded, params);
    OnebitAdam third(comm, layout, without);
    third.load_state_dict(copy_of(first.state()));
    for (std::int64_t t = 7; t <= 9; ++t) {
      (void)test::step_of(second, loaded, t, comm.rank());
      (void)test::step_of(third, params, t, comm.rank());
      ASSERT_EQ(loaded, params) << t;
    }
    Floats all(2 * layout.size());
    comm.all_gather(View(params), View(all));
    for (std::size_t i = 0; i < all.size(); ++i)
      ASSERT_EQ(all[i], params[i % layout.size()]);
  });
}

// Before it has sent its momentum, and after that.
TEST(UnderNextStep, NamesARankThatDies) {
  const ParameterLayout layout = test::grouped_layout();
  for (const std::int64_t dies_after : {kFreeze, kFreeze + 2}) {
    const auto run = [&] {
      comm::run_local_ranks(3, [&](comm::Communicator& comm) {
        OnebitAdam optimizer(comm, layout, plain_options());
        Floats params = test::normal(layout.size(), 3);
        for (std::int64_t t = 1; t <= dies_after; ++t)
          (void)test::step_of(optimizer, params, t, comm.rank());
        if (comm.rank() == 1) throw std::runtime_error("disk full");
        for (std::int64_t t = dies_after + 1; t < dies_after + 3; ++t)
          (void)test::step_of(optimizer, params, t, comm.rank());
        ADD_FAILURE() << "rank " << comm.rank() << " went on";
      });
    };
    try {
      run();
      ADD_FAILURE() << "no error";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("disk full"), std::string::npos)
          << error.what();
    }
  }
}

TEST(UnderNextStep, NeedsOneMoreArray) {
  const ParameterLayout layout = ParameterLayout::of({{"p", {256, 1024}}});
  std::vector<double> used;
  for (const bool goes_under : {false, true})
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      OnebitAdam optimizer(
          comm, layout,
          {.freeze = {.step = 1},
           .compression = {.exchange = {.under_next_step = goes_under}}});
      Floats params(layout.size());
      for (std::int64_t t = 1; t <= 3; ++t)
        (void)test::step_of(optimizer, params, t, comm.rank());
      if (comm.rank() == 0)
        used.push_back(static_cast<double>(memory_use().total()));
    });
  EXPECT_NEAR((used[1] - used[0]) / static_cast<double>(layout.size()), 4, 0.1);
}

TEST(UnderNextStep, IsRefusedWithExcludedOptions) {
  const ParameterLayout layout = test::grouped_layout();
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    const CompressionOptions compression{.exchange = {.under_next_step = true}};
    test::expect_invalid({"under_next_step", "onebit_lamb"}, [&] {
      OnebitLamb(comm, layout, {.compression = compression});
    });
    test::expect_invalid({"under_next_step", "zero_one_adam"}, [&] {
      ZeroOneAdam(comm, layout, {.compression = compression});
    });
  });
}

}  // namespace
}  // namespace thinwire::optim::under_next_step_test
