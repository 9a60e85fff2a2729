// SPDX-License-Identifier: Apache-2.0
// Several backwards per step.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "engine/by_hand.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace thinwire::engine::test::engine_accumulation_test {
namespace {

class EngineAccumulation
    : public ::testing::TestWithParam<std::tuple<DType, std::string>> {};

INSTANTIATE_TEST_SUITE_P(All, EngineAccumulation,
                         ::testing::Combine(::testing::ValuesIn(kDTypes),
                                            ::testing::Values("adam",
                                                              "onebit_adam",
                                                              "zero_one_adam")),
                         [](const auto& tested) {
                           return fmt::format(
                               "{}_{}", std::get<1>(tested.param),
                               to_string(std::get<0>(tested.param)));
                         });

// Who ends a window: the configuration's number of backwards, step(), or the
// caller.
enum class Ends { kByNumber, kByStep, kByCaller };

// Sums are fp32 from the second backward on, and rounded for exact averages.
void expect_sums(
    comm::Communicator& comm, const Config& config, Ends ends,
    const std::function<std::int64_t(std::int64_t)>& backwards_of) {
  ByHand hand(comm, config,
              {.max_grad_norm = config.gradient_clipping,
               .lagged_clipping = config.lagged_clipping,
               .bucket_elements = 16384});
  Sharded driven(comm, config);
  constexpr Order orders[] = {Order::kReverse, Order::kPartly, Order::kPerRank,
                              Order::kSilent};
  std::int64_t applied = 0;
  for (std::int64_t t = 1; t <= 6; ++t) {
    const std::int64_t count = backwards_of(t);
    const bool overflows = t == 3 && comm.rank() == 0;
    const auto want =
        hand.step(t, count, *config.gradient_accumulation_steps, overflows);
    for (std::int64_t micro = 0; micro < count; ++micro) {
      const bool is_last = micro == count - 1;
      if (ends == Ends::kByCaller) {
        driven.engine.set_accumulation_boundary(is_last);
        EXPECT_EQ(driven.engine.is_boundary(), is_last);
      }
      driven.backward({t, micro, overflows && micro == 0},
                      orders[(t + micro) % 4]);
      EXPECT_EQ(driven.engine.is_boundary(), is_last || ends == Ends::kByStep);
      if (ends == Ends::kByStep && !is_last) continue;
      const EngineReport report = driven.engine.step();
      EXPECT_EQ(report.at_boundary, is_last);
      EXPECT_EQ(report.applied, is_last && t != 3);
      if (report.applied) ++applied;
      EXPECT_EQ(report.steps, applied);
      if (report.applied) {
        EXPECT_EQ(report.grad_norm, want.grad_norm);
      }
    }
    EXPECT_EQ(driven.engine.loss_scale(), hand.loss_scale());
    ASSERT_EQ(floats(driven.params.view()), floats(hand.params.view()))
        << count << " backwards, step " << t;
  }
}

TEST_P(EngineAccumulation, EqualsTheSumWrittenByHand) {
  const auto& [dtype, optimizer] = GetParam();
  for (const int world : {1, 3})
    for (const std::int64_t count : {1, 2, 3, 4}) {
      const Config config = config_of(optimizer, dtype, count);
      comm::run_local_ranks(world, [&](comm::Communicator& comm) {
        expect_sums(comm, config, Ends::kByNumber,
                    [count](std::int64_t) { return count; });
      });
    }
}

// Without a boundary that anybody set, step() ends the window.
TEST_P(EngineAccumulation, UnmanagedSumsWhateverCameBeforeStep) {
  const auto& [dtype, optimizer] = GetParam();
  const Config config = config_of(optimizer, dtype, 1, /*managed=*/false);
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    expect_sums(comm, config, Ends::kByStep,
                [](std::int64_t t) { return 1 + t % 3; });
  });
}

// The loss is divided by the configured number, whoever says when.
TEST_P(EngineAccumulation, TheCallersBoundaryDecides) {
  const auto& [dtype, optimizer] = GetParam();
  for (const bool managed : {true, false}) {
    const Config config = config_of(optimizer, dtype, 2, managed);
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      expect_sums(comm, config, Ends::kByCaller,
                  [](std::int64_t t) { return 1 + t % 4; });
    });
  }
}

// A micro-batch would be lost, or added to gradients that have left.
TEST(EngineAccumulationErrors, NoBackwardAfterTheLastOneOfAWindow) {
  const auto is_refused = [](Sharded& driven) {
    expect_error(ErrorCode::kFailedPrecondition, {"begin_backward", "step()"},
                 [&] { driven.engine.begin_backward(); });
  };
  for (const DType dtype : kDTypes)
    for (const bool managed : {true, false})
      for (const bool is_set : {true, false})
        comm::run_local_ranks(2, [&](comm::Communicator& comm) {
          if (!managed && !is_set) return;  // sums: see above
          const Config config = config_of("adam", dtype, 1, managed);
          ByHand hand(comm, config, {.bucket_elements = 16384});
          Sharded driven(comm, config);
          if (is_set) driven.engine.set_accumulation_boundary(true);
          for (std::int64_t t = 1; t <= 3; ++t) {
            hand.step(t, 1, 1, false);
            driven.backward({.step = t});
            is_refused(driven);
            // A boundary that is set now applies to the next backward.
            driven.engine.set_accumulation_boundary(false);
            is_refused(driven);
            EXPECT_TRUE(driven.engine.is_boundary());
            EXPECT_TRUE(driven.engine.step().applied);
            driven.engine.set_accumulation_boundary(is_set ? std::optional(true)
                                                           : std::nullopt);
            EXPECT_EQ(floats(driven.params.view()), floats(hand.params.view()));
          }
        });
}

TEST(EngineAccumulation, ACancelledBackwardBeginsTheWindowAnew) {
  for (const DType dtype : kDTypes)
    for (const int world : {1, 2})
      comm::run_local_ranks(world, [&](comm::Communicator& comm) {
        const Config config = config_of("onebit_adam", dtype, 3);
        ByHand hand(comm, config, {.bucket_elements = 16384});
        Sharded driven(comm, config);
        for (std::int64_t t = 1; t <= 4; ++t) {
          hand.step(t, 3, 3, false);
          for (std::int64_t fails_in = 0; fails_in < 3; ++fails_in) {
            for (std::int64_t micro = 0; micro < fails_in; ++micro)
              driven.step({90, micro});
            driven.engine.begin_backward();
            const std::vector<float> ones(20, 1.0f);
            kernels::accumulate(driven.grads.view().subview(0, 20), ones);
            driven.engine.gradient_ready(0);
            driven.engine.gradient_ready(2);
            driven.engine.cancel_backward();
            EXPECT_TRUE(is_zero(driven.grads.view()));
            expect_error(ErrorCode::kFailedPrecondition, {"no backward"},
                         [&] { driven.engine.step(); });
          }
          for (std::int64_t micro = 0; micro < 3; ++micro)
            driven.step({t, micro});
          ASSERT_EQ(floats(driven.params.view()), floats(hand.params.view()))
              << t;
        }
      });
}

// Other ranks already wait for the rest.
TEST(EngineAccumulationErrors, SentGradientsCannotBeCancelled) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    Sharded driven(comm, config_of("adam", DType::kFloat32));
    driven.engine.cancel_backward();  // there is none
    driven.backward({.step = 1});
    driven.engine.step();
    if (comm.rank() == 1) {
      expect_error(ErrorCode::kCommFailure, {"rank 0 gave up: no more of it"},
                   [&] { driven.step({.step = 2}); });
      return;
    }
    driven.engine.begin_backward();
    // The bucket of "scalar" stays here.
    for (std::size_t k = driven.layout.parameters().size(); k-- > 2;)
      driven.engine.gradient_ready(k);
    expect_error(ErrorCode::kCommFailure,
                 {"cancel_backward", "sent", "no more of it"},
                 [&] { driven.engine.cancel_backward("no more of it"); });
  });
}

}  // namespace
}  // namespace thinwire::engine::test::engine_accumulation_test
