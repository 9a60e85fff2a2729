// SPDX-License-Identifier: Apache-2.0
// An outer loop whose workers are hosts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "optim/naive/drive.h"
#include "optim/states.h"
#include "optim/support.h"
#include "outer/naive_outer.h"
#include "outer/support.h"
#include "support/errors.h"
#include "support/same_bits.h"
#include "thinwire/outer/outer_loop.h"

namespace thinwire::test::outer_hosts {

namespace {

using optim::StepReport;
using outer::OuterLoop;
using outer::OuterOptions;
using outer_loop::adam_inside;
using outer_loop::LoopRun;
using outer_loop::onebit_inside;
using Floats = std::vector<float>;

class OuterHosts : public ::testing::TestWithParam<Ranks> {};
INSTANTIATE_TEST_SUITE_P(All, OuterHosts, ::testing::ValuesIn(kByHost),
                         name_of_ranks);

// A host that has the mean of its ranks' gradients is one rank of a flat loop.
TEST_P(OuterHosts, AreTheWorkers) {
  const Ranks ranks = GetParam();
  const ParameterLayout layout = grouped_layout();
  const Drive given{.steps = 9, .gradient = late_on_one_rank};
  for (const bool onebit : {false, true})
    for (const int bits : {0, 4, 8}) {
      const OuterOptions options{.sync_every = 2,
                                 .learning_rate = 0.7,
                                 .momentum = 0.6,
                                 .bits_up = bits,
                                 .bits_down = bits,
                                 .warmup_steps = 3,
                                 .warmup_bits = 0};
      const outer::MakeInner make =
          onebit ? onebit_inside(layout, 3) : adam_inside(layout);
      const auto size = static_cast<std::size_t>(ranks.size());
      const auto steps = static_cast<std::size_t>(given.steps);
      std::vector<std::vector<Floats>> got(steps, std::vector<Floats>(size));
      run_by_host(ranks, [&](comm::Communicator& comm) {
        OuterLoop optimizer(comm, layout, make, options);
        Floats params = normal(layout.size(), 3);
        for (std::size_t t = 0; t < steps; ++t) {
          Floats grads = late_on_one_rank(
              layout, static_cast<std::int64_t>(t) + 1, comm.rank());
          const StepReport report = optimizer.step(params, grads);
          // The first local step compares ranks.
          if (report.phase == optim::Phase::kLocal && t > 3) {
            EXPECT_EQ(report.bytes_between_hosts, 0u);
          }
          got[t][static_cast<std::size_t>(comm.rank())] = params;
        }
      });
      NaiveOuter naive(ranks.hosts, layout, make, options,
                       normal(layout.size(), 3));
      for (std::size_t t = 0; t < steps; ++t) {
        naive.step(
            given.of_workers(ranks, layout, static_cast<std::int64_t>(t) + 1));
        for (std::size_t r = 0; r < size; ++r) {
          const auto host = r / static_cast<std::size_t>(ranks.per_host);
          ASSERT_TRUE(same_bytes(got[t][r], naive.params[host]))
              << fmt::format("{} bits, rank {}, step {}", bits, r, t + 1);
        }
      }
    }
}

TEST(OuterHostsOf3, StayEqualInside) {
  const ParameterLayout layout = grouped_layout();
  const Ranks ranks{2, 3};
  std::vector<Floats> params(6);
  run_by_host(ranks, [&](comm::Communicator& comm) {
    OuterLoop optimizer(comm, layout, onebit_inside(layout, 3),
                        {.sync_every = 3, .warmup_steps = 3, .warmup_bits = 4});
    auto& own = params[static_cast<std::size_t>(comm.rank())];
    own = normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 8; ++t)
      step_of(optimizer, own, t, comm.rank());
    EXPECT_EQ(optim::steps_behind(optimizer), 2);
  });
  for (const int r : {1, 2, 4, 5})
    EXPECT_TRUE(same_bytes(params[static_cast<std::size_t>(r)],
                           params[static_cast<std::size_t>(r / 3 * 3)]));
  EXPECT_FALSE(same_bytes(params[0], params[3]));
}

// All ranks of the host leave the step out, and the sync names the one rank.
TEST(OuterHostsOf2, SkipAGradientThatIsNotFinite) {
  std::vector<Floats> params(4);
  run_by_host({2, 2}, [&](comm::Communicator& comm) {
    LoopRun run(comm, {.sync_every = 2}, {.skip_nonfinite = true});
    const Floats start = run.params;
    for (std::int64_t t = 1; t <= 2; ++t) {
      Floats grads = run.gradient(t);
      if (t == 1 && comm.rank() == 3)
        grads[0] = std::numeric_limits<float>::infinity();
      const StepReport report = run.step(grads);
      EXPECT_TRUE(report.applied);
      EXPECT_EQ(report.nonfinite_rank, t == 1 ? -1 : 3);
    }
    EXPECT_FALSE(same_bytes(run.params, start));
    params[static_cast<std::size_t>(comm.rank())] = run.params;
  });
  for (const Floats& own : params) EXPECT_TRUE(same_bytes(own, params[0]));
}

TEST(OuterHostsOf2, RefuseAStateOfOtherHosts) {
  run_by_host({2, 2}, [](comm::Communicator& comm) {
    LoopRun saved(comm, {.sync_every = 3});
    saved.step(1);
    StateDict state = optim::copy_of(saved.optimizer.state());
    state.put_all("", saved.optimizer.state().owner);
    const auto flat = comm.split(0, comm.rank());
    const LoopRun other(*flat, {.sync_every = 3});
    expect_error(ErrorCode::kCorruptCheckpoint,
                 {"2 ranks per host", "does not fit 1"},
                 [&] { other.optimizer.require_owner(state); });
  });
}

// Ranks of a host would otherwise move apart until the next comparison.
TEST(OuterHostsOf2, NameDifferentCallsAndLearningRatesInsideAHostAtOnce) {
  for (const bool rate : {true, false})
    run_by_host({2, 2}, [&](comm::Communicator& comm) {
      LoopRun run(comm, {.sync_every = 5}, {}, grouped_layout());
      run.step(1);
      if (comm.rank() > 1) return;  // those of the other host
      if (rate && comm.rank() == 1)
        run.optimizer.groups().set_learning_rate(0, 0.5);
      expect_error(ErrorCode::kFailedPrecondition,
                   {"another call or step, or has other learning rates"}, [&] {
                     if (!rate && comm.rank() == 1)
                       run.optimizer.local_steps()->synchronize(run.params);
                     else
                       run.step(2);
                   });
    });
}

}  // namespace

}  // namespace thinwire::test::outer_hosts
