// SPDX-License-Identifier: Apache-2.0
#include "thinwire/outer/outer_loop.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "optim/support.h"
#include "outer/naive_outer.h"
#include "outer/support.h"
#include "support/errors.h"
#include "support/ranks.h"
#include "support/same_bits.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/low_bit_mean.h"

namespace thinwire::test::outer_loop {

using optim::Phase;
using optim::StepReport;
using outer::OuterLoop;
using outer::OuterOptions;

namespace {

struct Case {
  std::string name;
  OuterOptions options;
  bool onebit = false;
  double max_grad_norm = 0;
};

std::vector<Case> cases() {
  return {
      {"every_3", {.sync_every = 3, .warmup_steps = 2, .warmup_bits = 0}},
      {"grows",
       {.sync_every = 4, .sync_growth = 3, .warmup_steps = 4, .warmup_bits = 0},
       true,
       0.5},
      {"momentum",
       {.sync_every = 3,
        .learning_rate = 0.7,
        .momentum = 0.6,
        .warmup_bits = 0}},
      {"exact",
       {.sync_every = 2, .bits_up = 0, .bits_down = 0, .warmup_bits = 0}},
      {"exact_down",
       {.sync_every = 2,
        .bits_up = 8,
        .bits_down = 0,
        .warmup_steps = 1,
        .warmup_bits = 0}},
      {"onebit_inside",
       {.sync_every = 2,
        .bits_up = 8,
        .bits_down = 8,
        .warmup_steps = 3,
        .warmup_bits = 0},
       true}};
}

class Naive : public ::testing::TestWithParam<std::tuple<int, Case>> {};
INSTANTIATE_TEST_SUITE_P(OuterLoop, Naive,
                         ::testing::Combine(::testing::Values(1, 3, 8),
                                            ::testing::ValuesIn(cases())),
                         kNameAndWorld);

// Threads and buckets change no bit.
TEST_P(Naive, HasTheSameBits) {
  const auto& [world, tested] = GetParam();
  for (const ParameterLayout& layout :
       {awkward_layout(), ParameterLayout::of({{"none", {0}}}),
        ParameterLayout::of({{"w31", {31}}, {"w7", {7}}})}) {
    optim::ExchangeOptions exchange{.max_grad_norm = tested.max_grad_norm};
    const auto make = [&](const optim::ExchangeOptions& own) {
      return tested.onebit
                 ? onebit_inside(layout, tested.options.warmup_steps, own)
                 : adam_inside(layout, own);
    };
    constexpr std::int64_t kSteps = 14;
    std::vector<std::vector<Floats>> expected;
    std::vector<bool> synced;
    NaiveOuter naive(world, layout, make(exchange), tested.options,
                     normal(layout.size(), 3));
    for (std::int64_t t = 1; t <= kSteps; ++t) {
      synced.push_back(naive.step(gradients(layout, t, world)));
      expected.push_back(naive.params);
    }
    for (const auto& [threads, bucket] :
         {std::pair<int, std::size_t>{1, 0}, {2, 1024}}) {
      exchange.num_threads = threads;
      exchange.bucket_elements = bucket;
      run_ranks("local", world, [&](comm::Communicator& comm) {
        OuterLoop optimizer(comm, layout, make(exchange), tested.options,
                            exchange);
        Floats params = normal(layout.size(), 3);
        for (std::int64_t t = 1; t <= kSteps; ++t) {
          Floats grads = gradient(layout.size(), t, comm.rank());
          const bool exact = t <= tested.options.warmup_steps;
          const auto at = static_cast<std::size_t>(t - 1);
          const Phase next = optimizer.progress().phase;
          const StepReport report = optimizer.step(params, grads);
          EXPECT_EQ(report.phase, exact        ? Phase::kExact
                                  : synced[at] ? Phase::kCompressed
                                               : Phase::kLocal);
          EXPECT_EQ(report.phase, next);
          EXPECT_TRUE(same_bytes(
              params, expected[at][static_cast<std::size_t>(comm.rank())]))
              << "step " << t << " rank " << comm.rank();
        }
      });
    }
  }
}

TEST(OuterLoop, WarmUpMayBeLowBit) {
  const ParameterLayout layout = awkward_layout();
  run_ranks("local", 3, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, adam_inside(layout),
                        {.sync_every = 2, .warmup_steps = 5, .warmup_bits = 4});
    ThreadPool pool(1);
    std::vector<std::size_t> sizes;
    for (const Parameter& p : layout.parameters()) sizes.push_back(p.size);
    std::vector<std::size_t> units(sizes.size());
    std::iota(units.begin(), units.end(), std::size_t{0});
    exchange::LowBitMean mean(comm, pool, sizes, {.bits = 4});
    const auto alone = std::move(comm::make_local_group(1).front());
    const auto by_hand = adam_inside(layout)(*alone);
    Floats params = normal(layout.size(), 3);
    Floats expected = params;
    for (std::int64_t t = 1; t <= 5; ++t) {
      Floats grads = gradient(layout.size(), t, comm.rank());
      Floats copy = grads;
      const StepReport report = optimizer.step(params, grads);
      EXPECT_EQ(report.bits, 4);
      EXPECT_TRUE(mean.average({.values = copy, .units = units}));
      by_hand->step(expected, copy);
      EXPECT_TRUE(same_bytes(params, expected)) << t;
    }
  });
}

TEST(OuterLoop, LocalStepsAreThoseOfTheInnerOptimizerAndSendNothing) {
  run_ranks("local", 4, [](comm::Communicator& comm) {
    LoopRun run(comm, {.sync_every = 9});
    const auto alone = std::move(comm::make_local_group(1).front());
    const auto by_hand = adam_inside(run.layout)(*alone);
    const Floats start = run.params;
    Floats expected = run.params;
    for (std::int64_t t = 1; t <= 8; ++t) {
      const StepReport report = run.step(t);
      // The first compares the ranks.
      EXPECT_EQ(report.bytes_sent + report.collectives == 0, t > 1);
      EXPECT_EQ(report.drift, 0);
      step_of(*by_hand, expected, t, comm.rank());
      EXPECT_TRUE(same_bytes(run.params, expected)) << t;
      EXPECT_TRUE(same_bytes(run.exchanged(), start));
    }
    EXPECT_EQ(optim::steps_behind(run.optimizer), 8);
  });
}

// ---- values that are not finite

TEST(OuterLoop, NamesARankThatSkippedAGradient) {
  run_ranks("local", 3, [](comm::Communicator& comm) {
    LoopRun run(comm, {.sync_every = 3});
    LoopRun other(comm, {.sync_every = 3});
    for (std::int64_t t = 1; t <= 6; ++t) {
      Floats grads = run.gradient(t);
      Floats zeroed = grads;
      if (t == 2 && comm.rank() == 1) {
        grads[5] = std::numeric_limits<float>::quiet_NaN();
        std::fill(zeroed.begin(), zeroed.end(), 0.0f);
      }
      const StepReport report = run.step(grads);
      other.step(zeroed);
      EXPECT_TRUE(report.applied);
      EXPECT_EQ(report.nonfinite_rank, t == 3 ? 1 : -1) << t;
      EXPECT_TRUE(same_bytes(run.params, other.params)) << t;
    }
    EXPECT_EQ(run.optimizer.progress().steps, 6);
    EXPECT_EQ(run.optimizer.progress().skipped, 0);
  });
}

TEST(OuterLoop, SkipsOnAllRanksIfTheCallerAsksForIt) {
  for (const std::int64_t warmup_steps : {0, 9})
    run_ranks("local", 3, [&](comm::Communicator& comm) {
      LoopRun run(comm, {.sync_every = 3, .warmup_steps = warmup_steps});
      const Floats start = run.params;
      Floats grads = run.gradient(1);
      if (comm.rank() == 2) grads[0] = std::numeric_limits<float>::infinity();
      const StepReport report =
          run.optimizer.step({.params = run.params,
                              .grads = grads,
                              .skip_if_any_rank_nonfinite = true});
      EXPECT_FALSE(report.applied);
      EXPECT_EQ(report.nonfinite_rank, 2);
      EXPECT_TRUE(same_bytes(run.params, start));
      EXPECT_EQ(run.optimizer.progress().steps, 0);
      EXPECT_EQ(run.optimizer.progress().skipped, 1);
    });
}

TEST(OuterLoop, RefusesToExchangeParametersThatAreNotFinite) {
  run_ranks("local", 3, [](comm::Communicator& comm) {
    LoopRun run(comm, {.sync_every = 2});
    const Floats start = run.params;
    run.step(1);
    if (comm.rank() == 1)
      run.params[0] = std::numeric_limits<float>::infinity();
    expect_error(ErrorCode::kNonFinite,
                 {"sync after 2 local steps: parameters of rank 1 are not "
                  "finite; nothing was exchanged, so load the last checkpoint"},
                 [&] { run.step(2); });
    EXPECT_TRUE(same_bytes(run.exchanged(), start));
  });
}

// ---- when it syncs, what it sends, and what it refuses

TEST(OuterLoop, SyncsAgainAnIntervalAfterSynchronize) {
  run_ranks("local", 2, [](comm::Communicator& comm) {
    LoopRun run(comm, {.sync_every = 4});
    std::vector<Phase> phases;
    for (std::int64_t t = 1; t <= 8; ++t) {
      phases.push_back(run.step(t).phase);
      if (t == 2) {
        optim::synchronize(run.optimizer, run.params);
        EXPECT_EQ(optim::steps_behind(run.optimizer), 0);
        EXPECT_EQ(run.optimizer.syncs(), 1);
        const auto sent = comm.counters().bytes_sent;
        optim::synchronize(run.optimizer, run.params);
        EXPECT_EQ(comm.counters().bytes_sent, sent);
      }
    }
    const std::vector<Phase> expected = {
        Phase::kLocal, Phase::kLocal,      Phase::kLocal, Phase::kLocal,
        Phase::kLocal, Phase::kCompressed, Phase::kLocal, Phase::kLocal};
    EXPECT_EQ(phases, expected);
  });
}

TEST(OuterLoop, ReportsTheResidualOfItsSyncs) {
  run_ranks("local", 4, [&](comm::Communicator& comm) {
    LoopRun run(comm, {.sync_every = 2});
    for (std::int64_t t = 1; t <= 4; ++t) run.step(t);
    EXPECT_GT(run.optimizer.residual_ratio(), 0.01);
    EXPECT_LT(run.optimizer.residual_ratio(), 1);
  });
}

TEST(OuterLoop, DriftMeasuresWhetherRanksMoveAlike) {
  const ParameterLayout layout = ParameterLayout::of({{"w", {8192}}});
  for (const bool alike : {true, false})
    run_ranks("local", 4, [&](comm::Communicator& comm) {
      OuterLoop optimizer(comm, layout, sgd_inside(layout, 0.1),
                          {.sync_every = 1, .bits_up = 0, .bits_down = 0});
      Floats params = normal(layout.size(), 3);
      Floats grads =
          normal(layout.size(),
                 100 + static_cast<std::uint32_t>(alike ? 0 : comm.rank()));
      const double drift = optimizer.step(params, grads).drift;
      EXPECT_NEAR(drift, alike ? 1 : 0.5, 0.03);
    });
}

// With SGD inside, the ranks' mean change has the direction of the gradients.
TEST(OuterLoop, RhoMeasuresWhetherSyncsMoveAlike) {
  const ParameterLayout layout = ParameterLayout::of({{"w", {8192}}});
  for (const double momentum : {0.0, 0.5})
    for (const int world : {1, 3})
      run_ranks("local", world, [&](comm::Communicator& comm) {
        OuterLoop optimizer(comm, layout, sgd_inside(layout, 0.1),
                            {.sync_every = 1,
                             .momentum = momentum,
                             .bits_up = 0,
                             .bits_down = 0});
        Floats params = normal(layout.size(), 3);
        const auto rho = [&](float factor) {
          Floats grads = normal(layout.size(), 7);
          for (float& g : grads) g *= factor;
          return optimizer.step(params, grads).rho;
        };
        EXPECT_EQ(rho(1), 0);
        EXPECT_NEAR(rho(2), 1, 1e-6);
        EXPECT_NEAR(rho(-1), -1, 1e-6);
        Floats others = normal(layout.size(), 8);
        EXPECT_NEAR(optimizer.step(params, others).rho, 0, 0.05);
      });
}

// Ranks compare parameters and options when local steps begin, and later with
// `verify_every`.
TEST(OuterLoop, ComparesRanksBeforeLocalSteps) {
  run_ranks("local", 2, [](comm::Communicator& comm) {
    for (const bool parameters_differ : {true, false}) {
      LoopRun run(comm, {.sync_every = 2});
      if (comm.rank() == 1 && parameters_differ) run.params[7] += 1;
      if (comm.rank() == 1 && !parameters_differ)
        run.optimizer.groups().set_learning_rate(0, 0.25);
      const Floats before = run.params;
      expect_error(
          ErrorCode::kCommFailure,
          {parameters_differ ? "parameter odd" : "learning rate of group 0"},
          [&] { run.step(1); });
      EXPECT_EQ(run.optimizer.progress().steps, 0);
      EXPECT_TRUE(same_bytes(run.params, before));
    }
  });
}

TEST(OuterLoop, VerifiesLearningRatesInSyncs) {
  run_ranks("local", 2, [](comm::Communicator& comm) {
    LoopRun run(comm, {.sync_every = 2}, {.verify_every = 2});
    run.step(1);
    if (comm.rank() == 1) run.optimizer.groups().set_learning_rate(0, 0.25);
    expect_error(ErrorCode::kCommFailure, {"learning rate of group 0"},
                 [&] { run.step(2); });
  });
}

// A rank that syncs in a step and one that syncs for an evaluation do not
// exchange with each other.
TEST(OuterLoop, RefusesCallsThatDifferBetweenRanks) {
  run_ranks("local", 2, [](comm::Communicator& comm) {
    LoopRun run(comm, {.sync_every = 2});
    run.step(1);
    expect_error(ErrorCode::kFailedPrecondition, {"all ranks must make"}, [&] {
      if (comm.rank() == 0)
        run.step(2);
      else
        run.optimizer.local_steps()->synchronize(run.params);
    });
  });
}

// A rank that synchronize() has found to leave out a step is named by the next
// step.
TEST(OuterLoop, ReportsARankFoundByAnEvaluation) {
  run_ranks("local", 2, [](comm::Communicator& comm) {
    LoopRun run(comm, {.sync_every = 9}, {.skip_nonfinite = true});
    std::vector<int> named;
    for (std::int64_t t = 1; t <= 3; ++t) {
      Floats grads = run.gradient(t);
      if (t == 1 && comm.rank() == 1) grads[0] = std::nanf("");
      named.push_back(run.step(grads).nonfinite_rank);
      if (t == 1) run.optimizer.local_steps()->synchronize(run.params);
    }
    EXPECT_EQ(named, (std::vector<int>{-1, 1, -1}));
  });
}

TEST(OuterLoop, ALostRankEndsTheSyncOfTheOthers) {
  std::vector<int> named(3);
  EXPECT_THROW(run_ranks("local", 3,
                         [&](comm::Communicator& comm) {
                           LoopRun run(comm, {.sync_every = 2});
                           run.step(1);
                           if (comm.rank() == 1)
                             throw std::runtime_error("killed");
                           try {
                             run.step(2);
                           } catch (const Error& error) {
                             EXPECT_EQ(error.code(), ErrorCode::kCommFailure);
                             named[static_cast<std::size_t>(comm.rank())] = 1;
                             throw;
                           }
                         }),
               std::runtime_error);
  EXPECT_EQ(named, (std::vector<int>{1, 0, 1}));
}

// ---- arguments

TEST(OuterOptions, NamesOptionsOutOfRange) {
  const auto refused = [](const OuterOptions& options, const char* text) {
    expect_invalid({text}, [&] { options.validate(); });
  };
  refused({}, "outer.sync_every must be >= 1, got 0");
  refused({.sync_every = 1, .sync_growth = -1},
          "outer.sync_growth must be >= 0, got -1");
  refused({.sync_every = 1, .learning_rate = 0},
          "outer.learning_rate must be finite and > 0, got 0");
  refused({.sync_every = 1, .momentum = 1},
          "outer.momentum must be in [0, 1), got 1");
  refused({.sync_every = 1, .bits_up = 2},
          "outer.bits_up must be 0, 4 or 8, got 2");
  refused({.sync_every = 1, .bits_down = 1},
          "outer.bits_down must be 0, 4 or 8, got 1");
  refused({.sync_every = 1, .warmup_steps = -2},
          "outer.warmup_steps must be >= 0, got -2");
  refused({.sync_every = 1, .warmup_bits = 16},
          "outer.warmup_bits must be 0, 4 or 8, got 16");
}

TEST(OuterLoop, RefusesOptionsThatDifferOnAllRanks) {
  run_ranks("local", 3, [](comm::Communicator& comm) {
    expect_invalid({"sync_every"}, [&] {
      LoopRun(comm, {.sync_every = comm.rank() == 1 ? 4 : 5});
    });
  });
}

TEST(OuterLoop, RefusesAnInnerOptimizerWithLocalSteps) {
  const ParameterLayout layout = small_layout();
  run_ranks("local", 2, [&](comm::Communicator& comm) {
    expect_invalid({"without local steps"}, [&] {
      OuterLoop(comm, layout, inner(zero_one_adam({}), layout),
                {.sync_every = 4});
    });
    expect_invalid({"make_inner"}, [&] {
      OuterLoop(comm, layout,
                [](comm::Communicator&) {
                  return std::unique_ptr<optim::Optimizer>();
                },
                {.sync_every = 4});
    });
  });
}

}  // namespace

}  // namespace thinwire::test::outer_loop
