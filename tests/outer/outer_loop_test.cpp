// SPDX-License-Identifier: Apache-2.0
#include "thinwire/outer/outer_loop.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "optim/other_ranks.h"
#include "optim/states.h"
#include "optim/support.h"
#include "outer/naive_outer.h"
#include "support/errors.h"
#include "support/ranks.h"
#include "support/same_bits.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/low_bit_mean.h"
#include "thinwire/optim/nesterov.h"

namespace thinwire::test::outer_loop {

using optim::Phase;
using optim::StepReport;
using outer::OuterLoop;
using outer::OuterOptions;
using Floats = std::vector<float>;

namespace {

outer::MakeInner inner(const MakeOptimizer& make,
                       const ParameterLayout& layout) {
  return [=](comm::Communicator& alone) { return make(alone, layout); };
}

outer::MakeInner adam_inside(const ParameterLayout& layout,
                             optim::ExchangeOptions exchange = {}) {
  return inner(
      exact_adam({.learning_rate = 1e-2, .weight_decay = 0.01}, exchange),
      layout);
}

outer::MakeInner onebit_inside(const ParameterLayout& layout,
                               std::int64_t freeze_step,
                               optim::ExchangeOptions exchange = {}) {
  return inner(onebit_adam({.learning_rate = 1e-2,
                            .freeze = {.step = freeze_step},
                            .compression = {.exchange = exchange}}),
               layout);
}

// An optimizer that subtracts learning_rate times the gradient.
outer::MakeInner sgd_inside(const ParameterLayout& layout,
                            double learning_rate) {
  return [=](comm::Communicator& alone) {
    return std::make_unique<optim::DataParallel>(
        alone,
        std::make_unique<optim::Nesterov>(
            layout, optim::NesterovOptions{.learning_rate = learning_rate}));
  };
}

std::vector<Floats> gradients(const ParameterLayout& layout, std::int64_t step,
                              int world) {
  std::vector<Floats> all;
  for (int r = 0; r < world; ++r)
    all.push_back(gradient(layout.size(), step, r));
  return all;
}

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
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 8),
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

TEST(OuterLoop, WarmUpAveragesInFewBits) {
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

// No operation rounds, so averages of parameters are averages of gradients.
TEST(OuterLoop, IsDataParallelIfRanksSyncInEachStep) {
  const ParameterLayout layout = small_layout();
  const auto dyadic = [&](std::int64_t t, int rank) {
    Floats values(layout.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(
          (static_cast<std::int64_t>(i) * 7 + t * 5 + rank * 3) % 64 - 32);
    return values;
  };
  for (const int world : {2, 4})
    run_ranks("local", world, [&](comm::Communicator& comm) {
      OuterLoop optimizer(comm, layout, sgd_inside(layout, 0.125),
                          {.sync_every = 1, .bits_up = 0, .bits_down = 0});
      optim::DataParallel exact(
          comm, std::make_unique<optim::Nesterov>(
                    layout, optim::NesterovOptions{.learning_rate = 0.125}));
      Floats params = dyadic(100, 0);
      Floats expected = params;
      for (std::int64_t t = 1; t <= 10; ++t) {
        Floats grads = dyadic(t, comm.rank());
        Floats same = grads;
        optimizer.step(params, grads);
        exact.step(expected, same);
        EXPECT_TRUE(same_bytes(params, expected)) << t;
      }
    });
}

TEST(OuterLoop, LocalStepsAreThoseOfTheInnerOptimizerAndSendNothing) {
  const ParameterLayout layout = small_layout();
  run_ranks("local", 4, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 9});
    const auto alone = std::move(comm::make_local_group(1).front());
    const auto by_hand = adam_inside(layout)(*alone);
    Floats params = normal(layout.size(), 3);
    const Floats start = params;
    Floats expected = params;
    for (std::int64_t t = 1; t <= 8; ++t) {
      Floats grads = gradient(layout.size(), t, comm.rank());
      Floats same = grads;
      const StepReport report = optimizer.step(params, grads);
      // The first compares the ranks.
      EXPECT_EQ(report.bytes_sent + report.collectives == 0, t > 1);
      EXPECT_EQ(report.drift, 0);
      by_hand->step(expected, same);
      EXPECT_TRUE(same_bytes(params, expected)) << t;
      EXPECT_TRUE(
          same_bytes(optim::exchanged_params(optimizer, params), start));
    }
    EXPECT_EQ(optim::steps_behind(optimizer), 8);
  });
}

// a - (a - p) rounds, and nothing else differs from the inner optimizer.
TEST(OuterLoop, OfOneRankFollowsItsInnerOptimizer) {
  const ParameterLayout layout = awkward_layout();
  run_ranks("local", 1, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 3});
    const auto by_hand = adam_inside(layout)(comm);
    Floats params = normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 30; ++t) {
      Floats expected = params;
      Floats grads = gradient(layout.size(), t, 0);
      Floats same = grads;
      optimizer.step(params, grads);
      by_hand->step(expected, same);
      for (std::size_t i = 0; i < params.size(); ++i)
        ASSERT_LE(std::abs(params[i] - expected[i]),
                  0x1p-23f * (1 + std::abs(expected[i])))
            << t << ' ' << i;
    }
  });
}

// +1 in one element of one rank is +learning_rate (1 + momentum) / W of all.
TEST(OuterLoop, MovesTheWayThatRanksHaveMoved) {
  const ParameterLayout layout = ParameterLayout::of({{"w", {4}}});
  run_ranks("local", 4, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, sgd_inside(layout, 1),
                        {.sync_every = 1,
                         .learning_rate = 0.5,
                         .momentum = 0.25,
                         .bits_up = 0,
                         .bits_down = 0});
    Floats params(4);
    Floats grads(4);
    if (comm.rank() == 2) grads[1] = -1;
    optimizer.step(params, grads);
    EXPECT_EQ(params, (Floats{0, 0.5f * 1.25f / 4, 0, 0}));
  });
}

// What the way down has rounded away arrives while nobody moves.
TEST(OuterLoop, TheAnchorReachesTheExactValuesOfRanksThatStandStill) {
  const ParameterLayout layout = awkward_layout();
  run_ranks("local", 3, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, sgd_inside(layout, 0.1),
                        {.sync_every = 1});
    Floats params = normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 1000; ++t) {
      Floats grads(layout.size());
      if (t <= 3) grads = gradient(layout.size(), t, comm.rank());
      optimizer.step(params, grads);
    }
    const Saved saved = save(optimizer);
    std::size_t at = 0;
    const auto exact = saved.values.array("outer.masters").as<float>();
    for (const Range& range : saved.what.find("outer.masters")->ranges)
      for (std::size_t i = range.offset; i < range.end(); ++i)
        EXPECT_EQ(params[i], exact[at++]) << i;
    Floats gathered(3 * layout.size());
    comm.all_gather(std::span<const float>(params), std::span(gathered));
    for (std::size_t i = 0; i < gathered.size(); ++i)
      ASSERT_EQ(gathered[i], params[i % params.size()]);
  });
}

// sum of what ranks changed = what the exact values moved + what ranks owe
TEST(OuterLoop, ErrorFeedbackLosesNothing) {
  const ParameterLayout layout = small_layout();
  constexpr int kWorld = 3;
  std::vector<Floats> changes(kWorld, Floats(layout.size()));
  std::vector<Saved> saved(kWorld);
  const Floats start = normal(layout.size(), 3);
  run_ranks("local", kWorld, [&](comm::Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 2});
    Floats params = start;
    Floats anchor = start;
    for (std::int64_t t = 1; t <= 40; ++t) {
      Floats grads = gradient(layout.size(), t, comm.rank());
      Floats before = params;
      // The change is known only before the sync puts the anchor in place.
      if (t % 2 == 0) {
        const auto alone = std::move(comm::make_local_group(1).front());
        const auto copy = adam_inside(layout)(*alone);
        StateDict state = optim::copy_of(optimizer.state());
        (void)copy->adopt(std::move(state))();
        Floats same = grads;
        copy->step(before, same);
        for (std::size_t i = 0; i < before.size(); ++i)
          changes[rank][i] += anchor[i] - before[i];
      }
      optimizer.step(params, grads);
      if (t % 2 == 0) anchor = params;
    }
    saved[rank] = save(optimizer);
  });
  Floats exact(layout.size());
  for (const Saved& of_rank : saved) {
    std::size_t at = 0;
    for (const Range& range : of_rank.what.find("outer.masters")->ranges)
      for (std::size_t i = range.offset; i < range.end(); ++i)
        exact[i] = of_rank.values.array("outer.masters").as<float>()[at++];
  }
  std::size_t at = 0;
  std::vector<std::size_t> place(layout.size());
  for (const Range& range : saved[0].what.find("outer.worker_error")->ranges)
    for (std::size_t i = range.offset; i < range.end(); ++i) place[i] = at++;
  ASSERT_EQ(at, layout.size());
  for (std::size_t i = 0; i < layout.size(); ++i) {
    double moved = 0;
    double owed = 0;
    for (std::size_t r = 0; r < kWorld; ++r) {
      moved += changes[r][i] / 3.0;
      owed +=
          saved[r].values.array("outer.worker_error").as<float>()[place[i]] /
          3.0;
    }
    // Twenty sums of a few terms, each rounded to fp32.
    EXPECT_NEAR(start[i] - exact[i] + owed, moved, 20 * 8 * 0x1p-23) << i;
  }
}

// ---- values that are not finite

TEST(OuterLoop, NamesARankThatLeftOutAGradient) {
  const ParameterLayout layout = small_layout();
  run_ranks("local", 3, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 3});
    OuterLoop other(comm, layout, adam_inside(layout), {.sync_every = 3});
    Floats params = normal(layout.size(), 3);
    Floats expected = params;
    for (std::int64_t t = 1; t <= 6; ++t) {
      Floats grads = gradient(layout.size(), t, comm.rank());
      Floats zeroed = grads;
      if (t == 2 && comm.rank() == 1) {
        grads[5] = std::numeric_limits<float>::quiet_NaN();
        std::fill(zeroed.begin(), zeroed.end(), 0.0f);
      }
      const StepReport report = optimizer.step(params, grads);
      other.step(expected, zeroed);
      EXPECT_TRUE(report.applied);
      EXPECT_EQ(report.nonfinite_rank, t == 3 ? 1 : -1) << t;
      EXPECT_TRUE(same_bytes(params, expected)) << t;
    }
    EXPECT_EQ(optimizer.progress().steps, 6);
    EXPECT_EQ(optimizer.progress().skipped, 0);
  });
}

TEST(OuterLoop, SkipsOnAllRanksWhereTheCallerAsksForIt) {
  const ParameterLayout layout = small_layout();
  for (const std::int64_t warmup_steps : {0, 9})
    run_ranks("local", 3, [&](comm::Communicator& comm) {
      OuterLoop optimizer(comm, layout, adam_inside(layout),
                          {.sync_every = 3, .warmup_steps = warmup_steps});
      Floats params = normal(layout.size(), 3);
      const Floats start = params;
      Floats grads = gradient(layout.size(), 1, comm.rank());
      if (comm.rank() == 2) grads[0] = std::numeric_limits<float>::infinity();
      const StepReport report =
          optimizer.step({.params = params,
                          .grads = grads,
                          .skip_if_any_rank_nonfinite = true});
      EXPECT_FALSE(report.applied);
      EXPECT_EQ(report.nonfinite_rank, 2);
      EXPECT_TRUE(same_bytes(params, start));
      EXPECT_EQ(optimizer.progress().steps, 0);
      EXPECT_EQ(optimizer.progress().skipped, 1);
    });
}

TEST(OuterLoop, RefusesToExchangeParametersThatAreNotFinite) {
  const ParameterLayout layout = small_layout();
  run_ranks("local", 3, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 2});
    Floats params = normal(layout.size(), 3);
    const Floats start = params;
    Floats grads = gradient(layout.size(), 1, comm.rank());
    optimizer.step(params, grads);
    if (comm.rank() == 1) params[0] = std::numeric_limits<float>::infinity();
    grads = gradient(layout.size(), 2, comm.rank());
    expect_error(ErrorCode::kNonFinite,
                 {"sync after 2 local steps: parameters of rank 1 are not "
                  "finite; nothing was exchanged, so load the last checkpoint"},
                 [&] { optimizer.step(params, grads); });
    EXPECT_TRUE(same_bytes(optim::exchanged_params(optimizer, params), start));
  });
}

// ---- one exchange

TEST(OuterLoop, SyncsAgainAnIntervalAfterSynchronize) {
  const ParameterLayout layout = small_layout();
  run_ranks("local", 2, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 4});
    Floats params = normal(layout.size(), 3);
    std::vector<Phase> phases;
    for (std::int64_t t = 1; t <= 8; ++t) {
      Floats grads = gradient(layout.size(), t, comm.rank());
      phases.push_back(optimizer.step(params, grads).phase);
      if (t == 2) {
        optim::synchronize(optimizer, params);
        EXPECT_EQ(optim::steps_behind(optimizer), 0);
        EXPECT_EQ(optimizer.syncs(), 1);
        const auto sent = comm.counters().bytes_sent;
        optim::synchronize(optimizer, params);
        EXPECT_EQ(comm.counters().bytes_sent, sent);
      }
    }
    const std::vector<Phase> expected = {
        Phase::kLocal, Phase::kLocal,      Phase::kLocal, Phase::kLocal,
        Phase::kLocal, Phase::kCompressed, Phase::kLocal, Phase::kLocal};
    EXPECT_EQ(phases, expected);
  });
}

// n b/8 bytes and a step per cell each way, 16 bytes of agreement, and the
// sums of the owners' cells.
TEST(OuterLoop, SendsFewBitsPerSync) {
  const ParameterLayout layout = ParameterLayout::of({{"w", {64, 1024}}});
  run_ranks("local", 4, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 2});
    Floats params = normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 4; ++t) {
      Floats grads = gradient(layout.size(), t, comm.rank());
      const StepReport report = optimizer.step(params, grads);
      const std::uint64_t records = 2 * (64 * 1024 / 2 + 64 * 4) * 3 / 4;
      const std::uint64_t scalars = 3 * (2 * 16 + 1 + 16 * 8);
      if (t % 2 == 0) {
        EXPECT_GE(report.bytes_sent, records);
        EXPECT_LE(report.bytes_sent, records + scalars + 64);
      }
    }
    EXPECT_GT(optimizer.residual_ratio(), 0.01);
    EXPECT_LT(optimizer.residual_ratio(), 1);
  });
}

TEST(OuterLoop, DriftTellsWhetherRanksMoveAlike) {
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
TEST(OuterLoop, RhoTellsWhetherSyncsMoveAlike) {
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

// What ranks have in common is compared when local steps begin, and later with
// `verify_every`.
TEST(OuterLoop, ComparesRanksBeforeLocalSteps) {
  const ParameterLayout layout = small_layout();
  run_ranks("local", 2, [&](comm::Communicator& comm) {
    for (const bool parameters_differ : {true, false}) {
      OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 2});
      Floats params = normal(layout.size(), 3);
      if (comm.rank() == 1 && parameters_differ) params[7] += 1;
      if (comm.rank() == 1 && !parameters_differ)
        optimizer.groups().set_learning_rate(0, 0.25);
      const Floats before = params;
      Floats grads = gradient(layout.size(), 1, comm.rank());
      expect_error(
          ErrorCode::kCommFailure,
          {parameters_differ ? "parameter odd" : "learning rate of group 0"},
          [&] { optimizer.step(params, grads); });
      EXPECT_EQ(optimizer.progress().steps, 0);
      EXPECT_TRUE(same_bytes(params, before));
    }
  });
}

TEST(OuterLoop, VerifiesLearningRatesInSyncs) {
  const ParameterLayout layout = small_layout();
  run_ranks("local", 2, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 2},
                        {.verify_every = 2});
    Floats params = normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 2; ++t) {
      Floats grads = gradient(layout.size(), t, comm.rank());
      if (t == 1) {
        optimizer.step(params, grads);
        if (comm.rank() == 1) optimizer.groups().set_learning_rate(0, 0.25);
      } else {
        expect_error(ErrorCode::kCommFailure, {"learning rate of group 0"},
                     [&] { optimizer.step(params, grads); });
      }
    }
  });
}

// A rank that syncs in a step and one that syncs for an evaluation do not
// exchange with each other.
TEST(OuterLoop, RefusesCallsThatDifferBetweenRanks) {
  const ParameterLayout layout = small_layout();
  run_ranks("local", 2, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 2});
    Floats params = normal(layout.size(), 3);
    Floats grads = gradient(layout.size(), 1, comm.rank());
    optimizer.step(params, grads);
    expect_error(ErrorCode::kFailedPrecondition, {"all ranks must make"}, [&] {
      if (comm.rank() == 0)
        optimizer.step(params, grads);
      else
        optimizer.local_steps()->synchronize(params);
    });
  });
}

// A rank that synchronize() has found to leave out a step is named by the next
// step.
TEST(OuterLoop, ReportsWhatAnEvaluationHasFound) {
  const ParameterLayout layout = small_layout();
  run_ranks("local", 2, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 9},
                        {.skip_nonfinite = true});
    Floats params = normal(layout.size(), 3);
    std::vector<int> named;
    for (std::int64_t t = 1; t <= 3; ++t) {
      Floats grads = gradient(layout.size(), t, comm.rank());
      if (t == 1 && comm.rank() == 1) grads[0] = std::nanf("");
      named.push_back(optimizer.step(params, grads).nonfinite_rank);
      if (t == 1) optimizer.local_steps()->synchronize(params);
    }
    EXPECT_EQ(named, (std::vector<int>{-1, 1, -1}));
  });
}

TEST(OuterLoop, ALostRankEndsTheSyncOfTheOthers) {
  const ParameterLayout layout = small_layout();
  std::vector<int> named(3);
  EXPECT_THROW(
      run_ranks("local", 3,
                [&](comm::Communicator& comm) {
                  OuterLoop optimizer(comm, layout, adam_inside(layout),
                                      {.sync_every = 2});
                  Floats params = normal(layout.size(), 3);
                  Floats grads = gradient(layout.size(), 1, comm.rank());
                  optimizer.step(params, grads);
                  if (comm.rank() == 1) throw std::runtime_error("killed");
                  try {
                    optimizer.step(params, grads);
                  } catch (const Error& error) {
                    EXPECT_EQ(error.code(), ErrorCode::kCommFailure);
                    named[static_cast<std::size_t>(comm.rank())] = 1;
                    throw;
                  }
                }),
      std::runtime_error);
  EXPECT_EQ(named, (std::vector<int>{1, 0, 1}));
}

// ---- states

struct Trained {
  std::unique_ptr<OuterLoop> optimizer;
  Floats params;
};

// A run that is saved at each step, and goes on with the same bits.
TEST(OuterLoop, GoesOnFromEveryStep) {
  const ParameterLayout layout = awkward_layout();
  const OuterOptions options{.sync_every = 4,
                             .sync_growth = 3,
                             .learning_rate = 0.8,
                             .momentum = 0.5,
                             .warmup_steps = 4};
  for (const int world : {1, 2, 3})
    run_ranks("local", world, [&](comm::Communicator& comm) {
      const auto make = [&] {
        return std::make_unique<OuterLoop>(
            comm, layout, onebit_inside(layout, 4, {.max_grad_norm = 0.5}),
            options);
      };
      const auto step = [&](Trained& run, std::int64_t t) {
        Floats grads = gradient(layout.size(), t, comm.rank());
        run.optimizer->step(run.params, grads);
      };
      constexpr std::int64_t kSteps = 16;
      for (std::int64_t saved_at = 0; saved_at < kSteps; ++saved_at) {
        Trained run{make(), normal(layout.size(), 3)};
        for (std::int64_t t = 1; t <= saved_at; ++t) step(run, t);
        const StateDict state = optim::copy_of(run.optimizer->state());
        StateDict owned;
        owned.put_all("", state);
        owned.put_all("", run.optimizer->state().owner);
        // One that has moved on takes it up, too.
        Trained resumed{make(), normal(layout.size(), 4)};
        for (std::int64_t t = 1; t <= 7; ++t) step(resumed, t + 50);
        const ConstView exchanged =
            optim::exchanged_params(*run.optimizer, run.params);
        std::ranges::copy(exchanged.as<float>(), resumed.params.begin());
        resumed.optimizer->load_state_dict(owned);
        resumed.optimizer->local_steps()->repeat(resumed.params);
        EXPECT_TRUE(same_bytes(resumed.params, run.params)) << saved_at;
        EXPECT_TRUE(
            same_state(optim::copy_of(resumed.optimizer->state()), state))
            << saved_at;
        for (std::int64_t t = saved_at + 1; t <= kSteps; ++t) {
          step(run, t);
          step(resumed, t);
          ASSERT_TRUE(same_bytes(resumed.params, run.params))
              << saved_at << ' ' << t;
        }
      }
    });
}

// What ranks owe the anchor, sum over ranks of (a - p_i + e_i) / W, and the
// exact values of the owners stay.
TEST(OuterLoop, GoesOnWithOtherRanks) {
  const ParameterLayout layout = awkward_layout();
  const OuterOptions options{.sync_every = 3, .warmup_steps = 2};
  for (const int before : {1, 2, 3, 4})
    for (const std::int64_t steps : {1, 2, 4, 5}) {
      std::vector<Saved> saved(static_cast<std::size_t>(before));
      Floats anchor(layout.size());
      std::vector<double> owed(layout.size());
      const auto add_owed = [&](const Saved& of_rank, int world,
                                std::vector<double>& sum) {
        const auto add = [&](const char* name, double factor, bool is_mean) {
          const optim::StateArray* const array = of_rank.what.find(name);
          if (array == nullptr) return;
          std::size_t at = 0;
          const auto values = of_rank.values.array(name).as<float>();
          for (const Range& range : array->ranges)
            for (std::size_t i = range.offset; i < range.end(); ++i)
              sum[i] += factor * values[at++] / (is_mean ? world : 1);
        };
        // An anchor that stands still is left of a - p_i and m - a.
        add("outer.masters", 1, false);
        add("outer.worker_error", -1, true);
        add("outer.local_params", 1, true);
      };
      run_ranks("local", before, [&](comm::Communicator& comm) {
        OuterLoop optimizer(comm, layout, adam_inside(layout), options);
        Floats params = normal(layout.size(), 3);
        for (std::int64_t t = 1; t <= steps; ++t) {
          Floats grads = gradient(layout.size(), t, comm.rank());
          optimizer.step(params, grads);
        }
        saved[static_cast<std::size_t>(comm.rank())] = save(optimizer);
        if (comm.rank() == 0)
          std::ranges::copy(
              optim::exchanged_params(optimizer, params).as<float>(),
              anchor.begin());
      });
      for (const Saved& of_rank : saved) add_owed(of_rank, before, owed);
      for (const int after : {1, 2, 3, 4}) {
        std::vector<Saved> loaded(static_cast<std::size_t>(after));
        std::vector<Floats> ends(static_cast<std::size_t>(after));
        run_ranks("local", after, [&](comm::Communicator& comm) {
          OuterLoop optimizer(comm, layout, adam_inside(layout), options);
          adopt(comm, optimizer, saved);
          Floats params = anchor;
          optimizer.local_steps()->repeat(params);
          EXPECT_EQ(optimizer.progress().steps, steps);
          loaded[static_cast<std::size_t>(comm.rank())] = save(optimizer);
          for (std::int64_t t = steps + 1; t <= steps + 3; ++t) {
            Floats grads = gradient(layout.size(), t, comm.rank());
            optimizer.step(params, grads);
          }
          optim::synchronize(optimizer, params);
          ends[static_cast<std::size_t>(comm.rank())] = params;
        });
        for (const Floats& end : ends) EXPECT_TRUE(same_bytes(end, ends[0]));
        if (before == 1 || after == 1) continue;  // without masters
        std::vector<double> now(layout.size());
        for (const Saved& of_rank : loaded) add_owed(of_rank, after, now);
        for (std::size_t i = 0; i < now.size(); ++i)
          EXPECT_NEAR(now[i], owed[i], 4 * 0x1p-23 * (1 + std::abs(owed[i])))
              << before << " to " << after << ", step " << steps << ", " << i;
      }
    }
}

// A single rank moves on from the owners' exact values.
TEST(OuterLoop, ASingleRankTakesUpWhatOwnersHad) {
  const ParameterLayout layout = small_layout();
  const OuterOptions options{.sync_every = 2};
  for (const std::int64_t steps : {4, 5}) {
    std::vector<Saved> saved(3);
    std::vector<Floats> params(3);
    Floats anchor;
    run_ranks("local", 3, [&](comm::Communicator& comm) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      OuterLoop optimizer(comm, layout, adam_inside(layout), options);
      params[rank] = normal(layout.size(), 3);
      for (std::int64_t t = 1; t <= steps; ++t) {
        Floats grads = gradient(layout.size(), t, comm.rank());
        optimizer.step(params[rank], grads);
      }
      saved[rank] = save(optimizer);
      if (rank != 0) return;
      const ConstView now = optim::exchanged_params(optimizer, params[rank]);
      anchor.assign(now.as<float>().begin(), now.as<float>().end());
    });
    Floats exact(layout.size());
    for (const Saved& of_rank : saved) {
      std::size_t at = 0;
      for (const Range& range : of_rank.what.find("outer.masters")->ranges)
        for (std::size_t i = range.offset; i < range.end(); ++i)
          exact[i] = of_rank.values.array("outer.masters").as<float>()[at++];
    }
    run_ranks("local", 1, [&](comm::Communicator& comm) {
      OuterLoop optimizer(comm, layout, adam_inside(layout), options);
      adopt(comm, optimizer, saved);
      Floats now = anchor;
      optimizer.local_steps()->repeat(now);
      for (std::size_t i = 0; i < now.size(); ++i) {
        const double mean =
            (double{params[0][i]} + params[1][i] + params[2][i]) / 3;
        EXPECT_NEAR(now[i], exact[i] + mean - anchor[i],
                    8 * 0x1p-23 * (1 + std::abs(mean)));
      }
    });
  }
}

TEST(OuterLoop, TakesUpAdamAndGivesBackToIt) {
  const ParameterLayout layout = small_layout();
  run_ranks("local", 2, [&](comm::Communicator& comm) {
    const auto adam =
        exact_adam({.learning_rate = 1e-2, .weight_decay = 0.01})(comm, layout);
    OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 2});
    Floats params = normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 3; ++t) {
      Floats grads = gradient(layout.size(), t, comm.rank());
      adam->step(params, grads);
    }
    (void)optimizer.adopt(optim::copy_of(adam->state()))();
    EXPECT_EQ(optimizer.progress().steps, 3);
    for (std::int64_t t = 4; t <= 7; ++t) {
      Floats grads = gradient(layout.size(), t, comm.rank());
      optimizer.step(params, grads);
    }
    EXPECT_EQ(optim::steps_behind(optimizer), 0);
    (void)adam->adopt(optim::copy_of(optimizer.state()))();
    EXPECT_EQ(adam->progress().steps, 7);
  });
}

TEST(OuterLoop, BeginsAgainWithParametersFromElsewhere) {
  const ParameterLayout layout = small_layout();
  run_ranks("local", 2, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 3});
    Floats params = normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 2; ++t) {
      Floats grads = gradient(layout.size(), t, comm.rank());
      optimizer.step(params, grads);
    }
    params = normal(layout.size(), 9);
    optimizer.set_masters(ConstView(params));
    EXPECT_EQ(optim::steps_behind(optimizer), 0);
    EXPECT_EQ(optimizer.progress().phase, Phase::kLocal);
  });
}

TEST(OuterLoop, RefusesAStateOfAnotherRank) {
  const ParameterLayout layout = small_layout();
  std::vector<StateDict> states(2);
  run_ranks("local", 2, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, adam_inside(layout), {.sync_every = 3});
    const auto rank = static_cast<std::size_t>(comm.rank());
    states[rank] = optim::copy_of(optimizer.state());
    states[rank].put_all("", optimizer.state().owner);
    comm.barrier();
    expect_error(ErrorCode::kCorruptCheckpoint, {"does not fit rank"},
                 [&] { optimizer.load_state_dict(states[1 - rank]); });
  });
}

// ---- arguments

TEST(OuterOptions, NamesWhatIsOutOfRange) {
  const auto refused = [](const OuterOptions& options, const char* text) {
    expect_error(ErrorCode::kInvalidArgument, {text},
                 [&] { options.validate(); });
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
  const ParameterLayout layout = small_layout();
  run_ranks("local", 3, [&](comm::Communicator& comm) {
    expect_error(ErrorCode::kInvalidArgument, {"sync_every"}, [&] {
      OuterLoop(comm, layout, adam_inside(layout),
                {.sync_every = comm.rank() == 1 ? 4 : 5});
    });
  });
}

TEST(OuterLoop, RefusesAnInnerOptimizerWithLocalSteps) {
  const ParameterLayout layout = small_layout();
  run_ranks("local", 2, [&](comm::Communicator& comm) {
    expect_error(ErrorCode::kInvalidArgument, {"without local steps"}, [&] {
      OuterLoop(comm, layout, inner(zero_one_adam({}), layout),
                {.sync_every = 4});
    });
    expect_error(ErrorCode::kInvalidArgument, {"make_inner"}, [&] {
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
