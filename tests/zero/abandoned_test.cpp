// SPDX-License-Identifier: Apache-2.0
// Backwards that fail, optimizers that are destroyed while something is under
// way, and gradients in any order.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "support/errors.h"
#include "support/sanitizers.h"
#include "zero/endings.h"

namespace thinwire::zero::abandoned_test {
namespace {

using test::collect_some;
using test::expect_error;
using test::expect_soon;
using test::kFailure;
using test::kLong;
using test::ones;
using test::two_groups;
using test::unscaled;
using test::ZeroRun;

TEST(ZeroAbandoned, ABackwardOfWhichNothingHasLeftIsCancelled) {
  for (const int world : {1, 2})
    test::run_ranks("local", world, [&](comm::Communicator& comm) {
      for (const int stage : {1, 2}) {
        ZeroRun run(comm, two_groups(), test::adam_rule(), unscaled(stage));
        ZeroRun clean(comm, two_groups(), test::adam_rule(), unscaled(stage));
        const Buffer grads = run.scaled(ones(run), DType::kFloat16);
        for (int t = 0; t < 2; ++t) {
          run.optimizer->gradients().begin({});
          run.optimizer->gradients().collect(0, grads.view().subview(0, 1500));
          EXPECT_TRUE(run.optimizer->gradients().cancel());
          expect_error(ErrorCode::kFailedPrecondition, {"no backward"},
                       [&] { run.optimizer->step(); });
          // Stage 1 sends nothing before the last one.
          if (stage == 1 || world == 1) {
            run.backward(ones(run), {.is_last = false});
            run.optimizer->gradients().begin({.is_first = false});
            if (world == 1) collect_some(run, grads, 0);
            EXPECT_TRUE(run.optimizer->gradients().cancel());
          }
          run.step(ones(run));
          clean.step(ones(clean));
          EXPECT_EQ(run.values(), clean.values()) << "stage " << stage;
        }
      }
    });
}

TEST(ZeroAbandoned, ABackwardOfWhichSomeHasLeftIsNot) {
  for (const int stage : {1, 2})
    expect_soon([&] {
      test::run_ranks(
          "local", 2,
          [&](comm::Communicator& comm) {
            ZeroRun run(comm, two_groups(), test::adam_rule(), unscaled(stage));
            const Buffer grads = run.scaled(ones(run), DType::kFloat16);
            if (stage == 2) {
              run.backward(ones(run), {.is_last = false});
              run.optimizer->gradients().begin({.is_first = false});
            } else {
              run.optimizer->gradients().begin({});
              collect_some(run, grads, 2);
            }
            EXPECT_FALSE(run.optimizer->gradients().cancel());
            expect_error(ErrorCode::kFailedPrecondition, {"only be destroyed"},
                         [&] { run.optimizer->gradients().begin({}); });
          },
          kLong);
    });
}

TEST(ZeroAbandoned, AnOptimizerMayGoWhileGradientsAreUnderWay) {
  const int rounds = test::fewer_if_sanitized<int>({20, 5}, 2).back();
  for (const int stage : {1, 2})
    for (int round = 0; round < rounds; ++round)
      expect_soon([&] {
        test::run_ranks(
            "local", 3,
            [&](comm::Communicator& comm) {
              ZeroOptions options = unscaled(stage);
              options.exchange.bucket_elements = 1;
              ZeroRun run(comm, two_groups(), test::adam_rule(), options);
              if (round % 2 == 1) run.backward(ones(run), {.is_last = false});
              run.backward(ones(run), {.is_first = round % 2 == 0});
            },
            kLong);
      });
}

// One rank has sent what the others never do.
TEST(ZeroAbandoned, AnOptimizerMayGoWhereOthersHaveSentNothing) {
  for (const int stage : {1, 2})
    expect_soon([&] {
      test::run_ranks(
          "local", 3,
          [&](comm::Communicator& comm) {
            ZeroRun run(comm, two_groups(), test::adam_rule(), unscaled(stage));
            if (comm.rank() > 0) return;
            try {
              run.backward(ones(run));
            } catch (const Error& error) {
              EXPECT_EQ(error.code(), kFailure);  // they had left by then
            }
          },
          kLong);
    });
}

// Buckets of one cell, all of which fill before the one that is to leave first,
// and on every rank in another order.
TEST(ZeroAbandoned, NoOrderOfGradientsIsADeadlock) {
  std::vector<ParameterSpec> specs;
  for (int i = 0; i < 12; ++i)
    specs.push_back({"p" + std::to_string(i), {700}});
  const ParameterLayout layout = ParameterLayout::of(std::move(specs));
  for (const bool overlap : {true, false})
    expect_soon([&] {
      test::run_ranks(
          "local", 4,
          [&](comm::Communicator& comm) {
            for (const int stage : {1, 2}) {
              ZeroOptions options = unscaled(stage);
              options.exchange.bucket_elements = 1;
              options.overlap = overlap;
              ZeroRun run(comm, layout, test::seeing_gradients(), options);
              std::vector<std::size_t> order(12);
              std::iota(order.begin(), order.end(), 0u);
              std::mt19937 random(static_cast<unsigned>(comm.rank()));
              for (int k = 0; k < 3; ++k) {
                if (comm.rank() > 0)
                  std::shuffle(order.begin(), order.end(), random);
                run.optimizer->gradients().begin(
                    {.is_first = k == 0, .is_last = k == 2});
                const std::vector<float> grad(
                    700, static_cast<float>(comm.rank() + k));
                for (const std::size_t i : order)
                  run.optimizer->gradients().collect(i, grad);
                run.optimizer->gradients().end();
                EXPECT_EQ(run.optimizer->gradients().late().elements, 0u);
              }
              EXPECT_TRUE(run.optimizer->step().applied);
              EXPECT_EQ(run.state("exp_avg"),
                        std::vector<float>(layout.size(), 7.5f));
            }
          },
          kLong);
    });
}

}  // namespace
}  // namespace thinwire::zero::abandoned_test
