// SPDX-License-Identifier: Apache-2.0
// States of an outer loop.
#include <gtest/gtest.h>

#include <cmath>

#include "optim/other_ranks.h"
#include "optim/states.h"
#include "optim/support.h"
#include "outer/support.h"
#include "support/errors.h"
#include "support/ranks.h"
#include "support/same_bits.h"
#include "thinwire/core/error.h"

namespace thinwire::test::outer_loop {

using optim::Phase;
using outer::OuterLoop;
using outer::OuterOptions;

namespace {

struct Trained {
  std::unique_ptr<OuterLoop> optimizer;
  Floats params;
};

// A run that is saved at each step, and goes on with the same bits.
TEST(OuterLoop, ContinuesFromEveryStep) {
  const ParameterLayout layout = awkward_layout();
  const OuterOptions options{.sync_every = 4,
                             .sync_growth = 3,
                             .learning_rate = 0.8,
                             .momentum = 0.5,
                             .warmup_steps = 4};
  for (const int world : {1, 3})
    run_ranks("local", world, [&](comm::Communicator& comm) {
      const auto make = [&] {
        return std::make_unique<OuterLoop>(
            comm, layout, onebit_inside(layout, 4, {.max_grad_norm = 0.5}),
            options);
      };
      const auto step = [&](Trained& run, std::int64_t t) {
        step_of(*run.optimizer, run.params, t, comm.rank());
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
TEST(OuterLoop, ContinuesWithOtherRanks) {
  const ParameterLayout layout = awkward_layout();
  const OuterOptions options{.sync_every = 3, .warmup_steps = 2};
  for (const int before : {1, 2, 3})
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
        LoopRun run(comm, options, {}, layout);
        for (std::int64_t t = 1; t <= steps; ++t) run.step(t);
        saved[static_cast<std::size_t>(comm.rank())] = save(run.optimizer);
        if (comm.rank() == 0)
          std::ranges::copy(run.exchanged().as<float>(), anchor.begin());
      });
      for (const Saved& of_rank : saved) add_owed(of_rank, before, owed);
      for (const int after : {1, 2, 3}) {
        std::vector<Saved> loaded(static_cast<std::size_t>(after));
        std::vector<Floats> ends(static_cast<std::size_t>(after));
        run_ranks("local", after, [&](comm::Communicator& comm) {
          LoopRun run(comm, options, {}, layout);
          adopt(comm, run.optimizer, saved);
          run.params = anchor;
          run.optimizer.local_steps()->repeat(run.params);
          EXPECT_EQ(run.optimizer.progress().steps, steps);
          loaded[static_cast<std::size_t>(comm.rank())] = save(run.optimizer);
          for (std::int64_t t = steps + 1; t <= steps + 3; ++t) run.step(t);
          optim::synchronize(run.optimizer, run.params);
          ends[static_cast<std::size_t>(comm.rank())] = run.params;
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
TEST(OuterLoop, ASingleRankRestoresTheOwnersValues) {
  const ParameterLayout layout = small_layout();
  const OuterOptions options{.sync_every = 2};
  for (const std::int64_t steps : {4, 5}) {
    std::vector<Saved> saved(3);
    std::vector<Floats> params(3);
    Floats anchor;
    run_ranks("local", 3, [&](comm::Communicator& comm) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      LoopRun run(comm, options);
      for (std::int64_t t = 1; t <= steps; ++t) run.step(t);
      saved[rank] = save(run.optimizer);
      params[rank] = run.params;
      if (rank != 0) return;
      const auto now = run.exchanged().as<float>();
      anchor.assign(now.begin(), now.end());
    });
    const Floats exact = exact_values(layout, saved);
    run_ranks("local", 1, [&](comm::Communicator& comm) {
      LoopRun run(comm, options);
      adopt(comm, run.optimizer, saved);
      Floats now = anchor;
      run.optimizer.local_steps()->repeat(now);
      for (std::size_t i = 0; i < now.size(); ++i) {
        const double mean =
            (double{params[0][i]} + params[1][i] + params[2][i]) / 3;
        EXPECT_NEAR(now[i], exact[i] + mean - anchor[i],
                    8 * 0x1p-23 * (1 + std::abs(mean)));
      }
    });
  }
}

TEST(OuterLoop, BeginsAgainWithParametersFromElsewhere) {
  run_ranks("local", 2, [](comm::Communicator& comm) {
    LoopRun run(comm, {.sync_every = 3});
    for (std::int64_t t = 1; t <= 2; ++t) run.step(t);
    run.params = normal(run.layout.size(), 9);
    run.optimizer.set_masters(ConstView(run.params));
    EXPECT_EQ(optim::steps_behind(run.optimizer), 0);
    EXPECT_EQ(run.optimizer.progress().phase, Phase::kLocal);
  });
}

TEST(OuterLoop, RefusesAStateOfAnotherRank) {
  std::vector<StateDict> states(2);
  run_ranks("local", 2, [&](comm::Communicator& comm) {
    LoopRun run(comm, {.sync_every = 3});
    const auto rank = static_cast<std::size_t>(comm.rank());
    states[rank] = optim::copy_of(run.optimizer.state());
    states[rank].put_all("", run.optimizer.state().owner);
    comm.barrier();
    expect_error(ErrorCode::kCorruptCheckpoint, {"does not fit rank"},
                 [&] { run.optimizer.load_state_dict(states[1 - rank]); });
  });
}

}  // namespace

}  // namespace thinwire::test::outer_loop
