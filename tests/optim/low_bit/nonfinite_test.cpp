// SPDX-License-Identifier: Apache-2.0
// A gradient that is not finite on one rank, in every phase of the low-bit
// optimizers, flat and by host.
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>
#include <vector>

#include "optim/low_bit/cases.h"
#include "optim/naive/drive.h"
#include "optim/states.h"
#include "support/converted.h"

namespace thinwire::optim::nonfinite_test {
namespace {

using test::LowBitCase;
using test::Ranks;

class LowBitNonfinite
    : public ::testing::TestWithParam<std::tuple<Ranks, LowBitCase>> {};
INSTANTIATE_TEST_SUITE_P(
    All, LowBitNonfinite,
    ::testing::Combine(::testing::Values(Ranks{1, 1}, Ranks{2, 1}, Ranks{3, 1},
                                         Ranks{2, 2}, Ranks{2, 4}),
                       ::testing::ValuesIn(test::low_bit_cases())),
    [](const auto& tested) {
      const Ranks& ranks = std::get<0>(tested.param);
      return fmt::format("{}_{}x{}", std::get<1>(tested.param).name,
                         ranks.hosts, ranks.per_host);
    });

TEST_P(LowBitNonfinite, ChangesNothingIfRanksSkipTogether) {
  const auto& [ranks, tested] = GetParam();
  const ParameterLayout layout = test::grouped_layout();
  const int per_host = ranks.per_host;
  test::run_by_host(ranks, [&, &test_case = tested](auto& comm) {
    const auto optimizer = test_case.make(comm, layout);
    std::vector<float> params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= test_case.steps; ++t) {
      auto grads = test::gradient_with_gaps(layout, t, comm.rank());
      const StateDict state = copy_of(optimizer->state());
      const auto before = params;
      const int guilty = static_cast<int>(t) % comm.size();
      auto bad = grads;
      if (comm.rank() == guilty)
        bad[static_cast<std::size_t>(t)] =
            t % 2 == 0 ? -std::numeric_limits<float>::quiet_NaN()
                       : std::numeric_limits<float>::infinity();
      const StepReport report = optimizer->step(StepInput{
          .params = params, .grads = bad, .skip_if_any_rank_nonfinite = true});
      EXPECT_FALSE(report.applied) << "step " << t;
      // Of a host's mean nobody knows whose gradient it was.
      EXPECT_EQ(report.nonfinite_rank / per_host, guilty / per_host)
          << "step " << t;
      EXPECT_EQ(params, before) << "step " << t;
      EXPECT_EQ(optimizer->progress().skipped, t);
      // The low-bit average has no residuals any more.
      std::set<std::string> changed = {"skipped_steps"};
      const StateDict after = copy_of(optimizer->state());
      if (report.residuals_cleared)
        for (const char* const name : {"worker_error", "server_error"}) {
          changed.insert(name);
          for (const float e : test::floats_of(after.array(name)))
            EXPECT_EQ(e, 0);
        }
      EXPECT_TRUE(test::same_state(after, state, changed)) << "step " << t;
      EXPECT_TRUE(optimizer->step(params, grads).applied);
      EXPECT_EQ(optimizer->progress().steps, t);
    }
  });
}

// Rank 0 leaves out the first local step of an interval or a later one.
class LeftOut : public ::testing::TestWithParam<std::tuple<int, int>> {};
INSTANTIATE_TEST_SUITE_P(All, LeftOut,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Values(17, 18, 19)));

TEST_P(LeftOut, IsReportedOnlyByTheNextSync) {
  const auto& [world, left_out] = GetParam();
  const ParameterLayout layout = test::grouped_layout();
  comm::run_local_ranks(world, [&, at = left_out](comm::Communicator& comm) {
    ZeroOneAdamOptions options = test::short_zero_one_adam();
    options.compression.exchange.verify_every = 1;
    auto current = std::make_unique<ZeroOneAdam>(comm, layout, options);
    std::vector<float> params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 24; ++t) {
      auto grads = test::gradient_with_gaps(layout, t, comm.rank());
      const bool leaves_out = t == at && comm.rank() == 0;
      if (leaves_out) grads[5] = std::numeric_limits<float>::quiet_NaN();
      const auto before = params;
      // Saved and loaded all the time: what is to be reported is state.
      const StateDict state = copy_of(current->state());
      current = std::make_unique<ZeroOneAdam>(comm, layout, options);
      current->load_state_dict(state);
      ZeroOneAdam& optimizer = *current;
      const StepReport report = optimizer.step(params, grads);
      EXPECT_TRUE(report.applied) << t;
      if (leaves_out) {
        EXPECT_EQ(params, before);
        // This rank's own values stay, and those of all ranks continue.
        EXPECT_TRUE(test::same_state(
            copy_of(optimizer.state()), state,
            {"step", "lrs", "decay", "local_step_interval",
             "local_step_counter", "left_out_a_step", "accumulated",
             "momentum_accumulator", "verification_is_due", "local_steps",
             "momenta_differ", "decay_taken", "arrays"}));
      }
      EXPECT_EQ(report.nonfinite_rank, t == 20 ? 0 : -1) << t;
    }
    EXPECT_EQ(current->progress().steps, 24);
    EXPECT_EQ(current->progress().skipped, 0);
  });
}

}  // namespace
}  // namespace thinwire::optim::nonfinite_test
