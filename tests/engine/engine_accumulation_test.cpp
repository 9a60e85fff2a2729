// SPDX-License-Identifier: Apache-2.0
// Several backwards per step.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/by_hand.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace thinwire::engine::engine_accumulation_test {

using config::Config;

namespace {

using test::Batch;
using test::ByHand;
using test::config_of;
using test::Driven;
using test::floats;
using test::Order;
using thinwire::test::expect_error;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16,
                             DType::kBFloat16};

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

// Sums are fp32 from the second backward on, and rounded for exact averages.
TEST_P(EngineAccumulation, EqualsTheSumWrittenByHand) {
  const auto& [dtype, optimizer] = GetParam();
  for (const int world : {1, 3})
    for (const std::int64_t count : {1, 2, 3, 4})
      comm::run_local_ranks(world, [&, &type = dtype, &name = optimizer](
                                       comm::Communicator& comm) {
        const Config config = config_of(name.c_str(), type, count);
        ByHand hand(comm, config, {.bucket_elements = 16384});
        Driven driven(comm, config);
        constexpr Order orders[] = {Order::kReverse, Order::kPartly,
                                    Order::kPerRank, Order::kSilent};
        for (std::int64_t t = 1; t <= 6; ++t) {
          const bool overflows = t == 3 && comm.rank() == 0;
          const auto want = hand.step(t, count, count, overflows);
          for (std::int64_t micro = 0; micro < count; ++micro) {
            driven.backward({t, micro, overflows && micro == 0},
                            orders[(t + micro) % 4]);
            EXPECT_EQ(driven.engine.is_boundary(), micro == count - 1);
            const EngineReport report = driven.engine.step();
            EXPECT_EQ(report.at_boundary, micro == count - 1);
            EXPECT_EQ(report.applied, report.at_boundary && t != 3);
            if (!report.at_boundary) continue;
            EXPECT_EQ(report.grad_norm, want.grad_norm);
          }
          EXPECT_EQ(driven.engine.loss_scale(), hand.loss_scale());
          ASSERT_EQ(floats(driven.params.view()), floats(hand.params.view()))
              << count << " backwards, step " << t;
        }
      });
}

// Without a boundary that anybody set, step() ends the window.
TEST_P(EngineAccumulation, UnmanagedSumsWhateverCameBeforeStep) {
  const auto& [dtype, optimizer] = GetParam();
  comm::run_local_ranks(2, [&, &type = dtype,
                            &name = optimizer](comm::Communicator& comm) {
    const Config config = config_of(name.c_str(), type, 1, /*managed=*/false);
    ByHand hand(comm, config, {.bucket_elements = 16384});
    Driven driven(comm, config);
    for (std::int64_t t = 1; t <= 6; ++t) {
      const std::int64_t count = 1 + t % 3;
      hand.step(t, count, 1, false);
      for (std::int64_t micro = 0; micro < count; ++micro) {
        driven.backward({t, micro}, Order::kPerRank);
        EXPECT_TRUE(driven.engine.is_boundary());
      }
      const EngineReport report = driven.engine.step();
      EXPECT_TRUE(report.at_boundary);
      EXPECT_EQ(report.steps, t);
      ASSERT_EQ(floats(driven.params.view()), floats(hand.params.view())) << t;
    }
  });
}

// The loss is divided by the configured number, whoever says when.
TEST_P(EngineAccumulation, TheCallersBoundaryDecides) {
  const auto& [dtype, optimizer] = GetParam();
  for (const bool managed : {true, false})
    comm::run_local_ranks(
        2, [&, &type = dtype, &name = optimizer](comm::Communicator& comm) {
          const Config config = config_of(name.c_str(), type, 2, managed);
          ByHand hand(comm, config, {.bucket_elements = 16384});
          Driven driven(comm, config);
          for (std::int64_t t = 1; t <= 6; ++t) {
            const std::int64_t count = 1 + t % 4;
            const auto want = hand.step(t, count, 2, false);
            for (std::int64_t micro = 0; micro < count; ++micro) {
              driven.engine.set_accumulation_boundary(micro == count - 1);
              EXPECT_EQ(driven.engine.is_boundary(), micro == count - 1);
              driven.backward({t, micro}, Order::kReverse);
              const EngineReport report = driven.engine.step();
              EXPECT_EQ(report.at_boundary, micro == count - 1);
              EXPECT_EQ(report.steps, report.at_boundary ? t : t - 1);
              if (report.at_boundary) {
                EXPECT_EQ(report.grad_norm, want.grad_norm);
              }
            }
            ASSERT_EQ(floats(driven.params.view()), floats(hand.params.view()))
                << t;
          }
        });
}

// A micro-batch would be lost, or added to gradients that have left.
TEST(EngineAccumulationErrors, NoBackwardAfterTheLastOneOfAWindow) {
  const auto is_refused = [](Driven& driven) {
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
          Driven driven(comm, config);
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

// "no_sync": the backward after it is the window's last.
TEST(EngineAccumulation, SumsWhatCameWithoutABoundary) {
  for (const DType dtype : kDTypes)
    for (const std::int64_t count : {1, 2, 5})
      comm::run_local_ranks(2, [&](comm::Communicator& comm) {
        const Config config = config_of("adam", dtype);
        ByHand hand(comm, config, {.bucket_elements = 16384});
        Driven driven(comm, config);
        for (std::int64_t t = 1; t <= 3; ++t) {
          hand.step(t, count + 1, 1, false);
          driven.engine.set_accumulation_boundary(false);
          for (std::int64_t micro = 0; micro < count; ++micro) {
            driven.backward({t, micro});
            EXPECT_FALSE(driven.engine.step().at_boundary);
          }
          driven.engine.set_accumulation_boundary(std::nullopt);
          driven.backward({t, count});
          EXPECT_TRUE(driven.engine.step().applied);
          ASSERT_EQ(floats(driven.params.view()), floats(hand.params.view()))
              << t;
        }
      });
}

TEST(EngineAccumulation, ACancelledBackwardBeginsTheWindowAnew) {
  for (const DType dtype : kDTypes)
    for (const int world : {1, 2})
      comm::run_local_ranks(world, [&](comm::Communicator& comm) {
        const Config config = config_of("onebit_adam", dtype, 3);
        ByHand hand(comm, config, {.bucket_elements = 16384});
        Driven driven(comm, config);
        for (std::int64_t t = 1; t <= 4; ++t) {
          hand.step(t, 3, 3, false);
          for (std::int64_t fails_in = 0; fails_in < 3; ++fails_in) {
            for (std::int64_t micro = 0; micro < fails_in; ++micro) {
              driven.backward({90, micro});
              driven.engine.step();
            }
            driven.engine.begin_backward();
            const std::vector<float> ones(20, 1.0f);
            kernels::accumulate(driven.grads.view().subview(0, 20), ones);
            driven.engine.gradient_ready(0);
            driven.engine.gradient_ready(2);
            driven.engine.cancel_backward();
            EXPECT_TRUE(test::is_zero(driven.grads.view()));
            expect_error(ErrorCode::kFailedPrecondition, {"no backward"},
                         [&] { driven.engine.step(); });
          }
          for (std::int64_t micro = 0; micro < 3; ++micro) {
            driven.backward({t, micro});
            driven.engine.step();
          }
          ASSERT_EQ(floats(driven.params.view()), floats(hand.params.view()))
              << t;
        }
      });
}

// Other ranks already wait for the rest.
TEST(EngineAccumulationErrors, WhatHasLeftCannotBeCancelled) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    Driven driven(comm, config_of("adam", DType::kFloat32));
    driven.engine.cancel_backward();  // there is none
    driven.backward({.step = 1});
    driven.engine.step();
    if (comm.rank() == 1) {
      expect_error(ErrorCode::kCommFailure, {"rank 0 gave up: no more of it"},
                   [&] {
                     driven.backward({.step = 2});
                     driven.engine.step();
                   });
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
}  // namespace thinwire::engine::engine_accumulation_test
