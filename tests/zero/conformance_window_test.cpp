// SPDX-License-Identifier: Apache-2.0
// Items of docs/conformance.md about several backwards before a step, and about
// parameters that some of them, or some ranks, leave out.
#include <gtest/gtest.h>

#include <cmath>

#include "support/errors.h"
#include "zero/support.h"

namespace thinwire::zero::conformance_window_test {
namespace {

using test::all_ways;
using test::unscaled;
using test::Way;
using test::ZeroRun;

std::vector<float> all(const ParameterLayout& layout, double value) {
  return std::vector<float>(layout.size(), static_cast<float>(value));
}

// Gradients that do not cancel, as rounding could turn those around.
std::vector<float> one_way(std::size_t size, unsigned seed) {
  std::vector<float> values = test::positive(size, seed);
  for (float& value : values) value /= 64;
  return values;
}

TEST(Zero, Item18StagesAgreeOnAWindowOfFour) {
  const ParameterLayout layout = test::two_groups();
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16})
    test::run_ranks("local", 2, [&](comm::Communicator& comm) {
      std::vector<std::vector<float>> masters;
      for (const Way& way : all_ways()) {
        ZeroOptions options = unscaled(way, dtype);
        options.loss_scale.initial_scale = 256;
        ZeroRun run(comm, layout, test::adam_rule(), options);
        for (unsigned t = 0; t < 3; ++t) {
          std::vector<std::vector<float>> window;
          for (unsigned k = 0; k < 4; ++k)
            window.push_back(
                one_way(layout.size(),
                        100 * t + 10 * k + static_cast<unsigned>(comm.rank())));
          EXPECT_TRUE(run.window(window).applied);
        }
        masters.push_back(run.masters());
        for (std::size_t i = 0; i < layout.size(); ++i)
          ASSERT_NEAR(masters.back()[i], masters.front()[i], 5e-5)
              << way << ", element " << i;
      }
    });
}

TEST(Zero, Item19OverlapDoesNotChangeBits) {
  const ParameterLayout layout = test::two_groups();
  for (const DType dtype : {DType::kFloat32, DType::kFloat16})
    test::run_ranks("local", 3, [&](comm::Communicator& comm) {
      for (const Way& way : all_ways()) {
        std::vector<std::vector<float>> values;
        for (const bool overlap : {true, false}) {
          ZeroOptions options = unscaled(way, dtype);
          options.overlap = overlap;
          options.exchange.max_grad_norm = 0.5;
          ZeroRun run(comm, layout, test::adam_rule(), options);
          for (unsigned t = 0; t < 2; ++t) {
            const unsigned seed = 10 * t + static_cast<unsigned>(comm.rank());
            run.window({test::normal(layout.size(), seed),
                        test::normal(layout.size(), seed + 100)});
          }
          values.push_back(run.values());
        }
        EXPECT_EQ(values[0], values[1]) << way;
      }
    });
}

// The reference gives each rank's slice that rank's own sum.
TEST(Zero, Item20SumsOfFp32AreAveraged) {
  const ParameterLayout layout = test::two_groups();
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16})
    test::run_ranks("local", 2, [&](comm::Communicator& comm) {
      for (const Way& way : all_ways()) {
        ZeroRun run(comm, layout, test::seeing_gradients(),
                    unscaled(way, dtype));
        const auto half = all(layout, comm.rank() == 0 ? 0.5 : 1.5);
        run.window({half, half});
        EXPECT_EQ(run.state("exp_avg"), all(layout, 2)) << way;
      }
    });
}

// 2049 has a bit more than fp16. Stage 1 sends the sum of the window, in fp16
// unless it is told to take fp32.
TEST(Zero, Item21SmallGradientsCountBesideLargeOnes) {
  const ParameterLayout layout = test::two_groups();
  for (const int world : {1, 2, 4})
    test::run_ranks("local", world, [&](comm::Communicator& comm) {
      for (const Way& way : all_ways()) {
        ZeroOptions options = unscaled(way);
        options.communication_dtype =
            way.stage == 1 ? DType::kFloat32 : DType::kFloat16;
        ZeroRun run(comm, layout, test::seeing_gradients(), options);
        for (int t = 0; t < 2; ++t) {
          run.window({all(layout, 2048), all(layout, 1)});
          EXPECT_EQ(run.state("exp_avg"), all(layout, 2049)) << way;
        }
        options.accumulation_dtype = DType::kFloat16;
        ZeroRun narrow(comm, layout, test::seeing_gradients(), options);
        narrow.window({all(layout, 2048), all(layout, 1)});
        EXPECT_EQ(narrow.state("exp_avg"), all(layout, 2048)) << way;
      }
    });
}

// The first backward's piece comes over the bus in 16 bits, and is added to
// in 32.
TEST(Zero, Item21OffloadedGradientsAreAddedUpInFp32) {
  const ParameterLayout layout = test::two_groups();
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16})
    test::run_ranks("local", 2, [&](comm::Communicator& comm) {
      ZeroRun run(comm, layout, test::seeing_gradients(),
                  unscaled({.stage = 2, .offload = true}, dtype));
      std::vector<float> first(layout.size());
      for (std::size_t i = 0; i < first.size(); ++i)
        first[i] = static_cast<float>(i % 97) + 1;
      run.window({first, all(layout, 0x1p-14)});
      for (float& value : first) value += 0x1p-14f;
      EXPECT_EQ(run.state("exp_avg"), first);
    });
}

TEST(Zero, Item22AParameterThatSomeRanksLeaveOutIsAveragedWithZero) {
  const ParameterLayout layout = test::two_groups();
  for (const int world : {2, 4})
    test::run_ranks("local", world, [&](comm::Communicator& comm) {
      for (const Way& way : all_ways())
        for (const std::string name : {"first", "second", "last"}) {
          ZeroRun run(comm, layout, test::seeing_gradients(), unscaled(way));
          for (int t = 0; t < 2; ++t) {
            const std::set<std::string> left_out =
                comm.rank() == 0 ? std::set<std::string>{}
                                 : std::set<std::string>{name};
            EXPECT_TRUE(run.step(all(layout, world), left_out).applied);
            for (const Parameter& p : layout.parameters())
              EXPECT_EQ(run.optimizer->whole_values().state(p.name, "exp_avg"),
                        std::vector<float>(
                            p.size,
                            p.name == name ? 1.0f : static_cast<float>(world)))
                  << way << ", without " << name;
          }
        }
    });
}

TEST(Zero, Item23AParameterInOneBackwardOnlyIsAveraged) {
  const ParameterLayout layout = test::two_groups();
  test::run_ranks("local", 2, [&](comm::Communicator& comm) {
    for (const Way& way : all_ways())
      for (const int used_in : {0, 1, 2}) {
        ZeroRun run(comm, layout, test::seeing_gradients(), unscaled(way));
        // What a window before left behind.
        run.window({all(layout, 5), all(layout, 7)});
        const auto own = all(layout, comm.rank() == 0 ? 1 : 3);
        for (int k = 0; k < 3; ++k)
          run.backward(own, {.is_first = k == 0, .is_last = k == 2},
                       k == used_in ? std::set<std::string>{}
                                    : std::set<std::string>{"second", "last"});
        EXPECT_TRUE(run.optimizer->step().applied);
        for (const Parameter& p : layout.parameters())
          EXPECT_EQ(
              run.optimizer->whole_values().state(p.name, "exp_avg"),
              std::vector<float>(
                  p.size, p.name == "first" || p.name == "one" ? 6.0f : 2.0f))
              << way << ", used in " << used_in;
      }
  });
}

// Nobody has said which backward is the last one.
TEST(Zero, Item26GradientsAreSummedUntilTheStep) {
  const ParameterLayout layout = test::two_groups();
  for (const int world : {1, 2})
    test::run_ranks("local", world, [&](comm::Communicator& comm) {
      for (const Way& way : all_ways()) {
        ZeroRun run(comm, layout, test::seeing_gradients(), unscaled(way));
        for (const int backwards : {1, 2, 5}) {
          for (int k = 0; k < backwards; ++k)
            run.backward(all(layout, comm.rank() + k),
                         {.is_first = k == 0, .is_last = false});
          const double sum =
              backwards * (backwards - 1) / 2.0 + backwards * (world - 1) / 2.0;
          EXPECT_EQ(run.gradient(), all(layout, sum)) << way;
          // What has been read is not added to any more.
          test::expect_error(ErrorCode::kFailedPrecondition,
                             {"begin_backward", "step()"}, [&] {
                               run.backward(all(layout, 1), {.is_first = false,
                                                             .is_last = false});
                             });
          EXPECT_TRUE(run.optimizer->step().applied);
          EXPECT_EQ(run.state("exp_avg"), all(layout, sum)) << way;
        }
      }
    });
}

TEST(Zero, Item26AfterTheLastBackwardThereIsNoOther) {
  const ParameterLayout layout = test::two_groups();
  test::run_ranks("local", 2, [&](comm::Communicator& comm) {
    ZeroRun run(comm, layout, test::adam_rule(), unscaled({}));
    run.backward(all(layout, 1));
    test::expect_error(ErrorCode::kFailedPrecondition, {"last backward"}, [&] {
      run.backward(all(layout, 1), {.is_first = false});
    });
    EXPECT_TRUE(run.optimizer->step().applied);
  });
}

}  // namespace
}  // namespace thinwire::zero::conformance_window_test
