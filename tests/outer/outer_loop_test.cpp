// SPDX-License-Identifier: Apache-2.0
#include "thinwire/outer/outer_loop.h"

#include <gtest/gtest.h>

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

}  // namespace

}  // namespace thinwire::test::outer_loop
