// SPDX-License-Identifier: Apache-2.0
// Items of docs/conformance.json about one step of sharded training: windows,
// overflows, parameters without gradients, groups, what is sent, and experts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "optim/states.h"
#include "optim/support.h"
#include "support/errors.h"
#include "support/sanitizers.h"
#include "zero/support.h"

namespace thinwire::zero::conformance_step_test {
namespace {

using optim::StepReport;
using test::unscaled;
using test::ZeroRun;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> all(const ParameterLayout& layout, double value) {
  return std::vector<float>(layout.size(), static_cast<float>(value));
}

TEST(Zero, Item27AnOverflowOnOneRankSkipsTheStepOnAll) {
  const ParameterLayout layout = test::two_groups();
  constexpr int kWorld = 3;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
    test::run_ranks("local", kWorld, [&](comm::Communicator& comm) {
      for (const int stage : {1, 2}) {
        ZeroOptions options = unscaled(stage, dtype);
        options.loss_scale = {
            .initial_scale = 1024, .hysteresis = 1, .min_scale = 0x1p-20};
        const bool scales = dtype == DType::kFloat16;
        ZeroRun run(comm, layout, test::adam_rule(), options);
        run.step(all(layout, 0.5));
        double scale = scales ? 1024 : 1;
        int skipped = 0;
        for (int guilty = 0; guilty < kWorld; ++guilty)
          for (const float bad : {kInfinity, kNaN})
            for (const std::size_t where :
                 {std::size_t{0}, layout.size() / 2, layout.size() - 1}) {
              const StateDict state = copy_of(run.optimizer->state());
              const auto before = run.values();
              auto grads = all(layout, 0.5);
              if (comm.rank() == guilty) grads[where] = bad;
              const StepReport report = run.step(grads);
              EXPECT_FALSE(report.applied);
              EXPECT_FALSE(std::isfinite(report.grad_norm));
              EXPECT_EQ(report.loss_scale, scale);
              EXPECT_EQ(run.values(), before);
              EXPECT_TRUE(test::same_state(
                  copy_of(run.optimizer->state()), state,
                  {"skipped_steps", "loss_scale", "loss_scale_steps",
                   "loss_scale_overflows_left", "loss_scale_last_overflow"}));
              EXPECT_EQ(run.optimizer->progress().steps, 1);
              EXPECT_EQ(run.optimizer->progress().skipped, ++skipped);
              if (scales) scale /= 2;
              EXPECT_EQ(run.optimizer->loss_scale(), scale);
            }
        EXPECT_TRUE(run.step(all(layout, 0.5)).applied);
      }
    });
}

// In fp16 steps are skipped whatever is chosen.
TEST(Zero, Item31SkippingInBfloat16IsAChoice) {
  const ParameterLayout layout = test::two_groups();
  test::run_ranks("local", 2, [&](comm::Communicator& comm) {
    for (const int stage : {1, 2})
      for (const auto& [dtype, chosen] : {std::pair(DType::kBFloat16, true),
                                          {DType::kBFloat16, false},
                                          {DType::kFloat16, false}}) {
        const bool skips = chosen || dtype == DType::kFloat16;
        ZeroOptions options = unscaled(stage, dtype);
        options.exchange.skip_nonfinite = chosen;
        ZeroRun run(comm, layout, test::adam_rule(), options);
        for (int t = 1; t <= 8; ++t) {
          const StepReport report =
              run.step(all(layout, comm.rank() == 1 ? kInfinity : 1));
          EXPECT_EQ(report.applied, !skips);
          EXPECT_FALSE(std::isfinite(report.grad_norm));
        }
        EXPECT_EQ(run.optimizer->progress().skipped, skips ? 8 : 0);
        EXPECT_EQ(run.optimizer->progress().steps, skips ? 0 : 8);
        for (const float value : run.values())
          ASSERT_EQ(std::isfinite(value), skips) << "stage " << stage;
      }
  });
}

// The reference's offload keeps the last gradient of a parameter that is not
// used, and applies it again; after an overflow that is a NaN.
TEST(Zero, Item34AnUnusedParameterAfterAnOverflowStaysAsItIs) {
  const ParameterLayout layout = test::two_groups();
  test::run_ranks("local", 2, [&](comm::Communicator& comm) {
    for (const int stage : {1, 2})
      for (const int backwards : {1, 2}) {
        ZeroRun run(comm, layout, test::seeing_gradients(), unscaled(stage));
        const auto start = run.values();
        const Parameter& p = layout.parameter("second");
        for (const float bad : {kInfinity, kNaN, 3.0f}) {
          const auto before = run.optimizer->whole_values().parameter("second");
          auto grads = all(layout, 1);
          std::fill_n(grads.begin() + static_cast<std::ptrdiff_t>(p.offset),
                      p.size, bad);
          const bool applied = std::isfinite(bad);
          EXPECT_EQ(run.window({grads, grads}).applied, applied);
          const auto between =
              run.optimizer->whole_values().parameter("second");
          EXPECT_EQ(between == before, !applied);
          for (int k = 0; k < backwards; ++k)
            run.backward(all(layout, 1),
                         {.is_first = k == 0, .is_last = k + 1 == backwards},
                         {"second"});
          EXPECT_TRUE(run.optimizer->step().applied);
          EXPECT_EQ(run.optimizer->whole_values().parameter("second"), between)
              << "stage " << stage;
          EXPECT_EQ(run.optimizer->whole_values().state("second", "exp_avg"),
                    std::vector<float>(p.size));
        }
      }
  });
}

TEST(Zero, Item39GroupsHaveTheirOwnRatesAndDecay) {
  const ParameterLayout layout = test::two_groups();
  const auto rule = test::adam_rule(
      {.learning_rate = 0.5,
       .groups = {{}, {.learning_rate = 0.25, .weight_decay = 2}}});
  test::run_ranks("local", 3, [&](comm::Communicator& comm) {
    for (const int stage : {1, 2}) {
      ZeroRun run(comm, layout, rule, unscaled(stage));
      EXPECT_EQ(run.optimizer->groups().num_groups(), 2u);
      EXPECT_EQ(run.optimizer->groups().learning_rate(0), 0.5);
      EXPECT_EQ(run.optimizer->groups().learning_rate(1), 0.25);
      run.step(all(layout, 0));
      const auto decayed = run.masters();
      for (const Parameter& p : layout.parameters())
        for (std::size_t i = p.offset; i < p.offset + p.size; ++i)
          ASSERT_EQ(decayed[i], run.start[i] / (p.group == 1 ? 2 : 1));
      EXPECT_EQ(run.optimizer->groups().weight_decay(1), 2);
      run.optimizer->groups().set_weight_decay(1, 0);
      run.step(all(layout, 0));
      EXPECT_EQ(run.masters(), decayed);
      run.optimizer->groups().set_learning_rate(0, 0.125);
      run.optimizer->groups().set_learning_rate(1, 0);
      run.step(all(layout, 1));
      const auto moved = run.masters();
      for (const Parameter& p : layout.parameters())
        for (std::size_t i = p.offset; i < p.offset + p.size; ++i)
          ASSERT_EQ(moved[i] != decayed[i], p.group == 0);
    }
  });
}

// Nobody has said which backward is the last one.
TEST(Zero, Item26GradientsAreSummedUntilTheStep) {
  const ParameterLayout layout = test::two_groups();
  for (const int world : {1, 2})
    test::run_ranks("local", world, [&](comm::Communicator& comm) {
      for (const int stage : {1, 2}) {
        ZeroRun run(comm, layout, test::seeing_gradients(), unscaled(stage));
        for (const int backwards : {1, 2, 5}) {
          for (int k = 0; k < backwards; ++k)
            run.backward(all(layout, comm.rank() + k),
                         {.is_first = k == 0, .is_last = false});
          const double sum =
              backwards * (backwards - 1) / 2.0 + backwards * (world - 1) / 2.0;
          EXPECT_EQ(run.gradient(), all(layout, sum)) << "stage " << stage;
          // A gradient that has been read is final.
          test::expect_error(ErrorCode::kFailedPrecondition,
                             {"begin_backward", "step()"}, [&] {
                               run.backward(all(layout, 1), {.is_first = false,
                                                             .is_last = false});
                             });
          EXPECT_TRUE(run.optimizer->step().applied);
          EXPECT_EQ(run.state("exp_avg"), all(layout, sum))
              << "stage " << stage;
        }
      }
    });
}

// ---- what is sent, and what of it is used

// Bytes and collectives that a window takes on one rank.
struct Sent {
  double bytes = 0;
  std::uint64_t collectives = 0;
};

Sent sent_in_window(comm::Communicator& comm, ZeroRun& run, int backwards) {
  const comm::Counters before = comm.counters();
  const std::vector<float> grads(run.layout.size(), 0.25f);
  run.window(std::vector<std::vector<float>>(
      static_cast<std::size_t>(backwards), grads));
  const comm::Counters sent = comm.counters() - before;
  return {static_cast<double>(sent.bytes_sent), sent.collectives};
}

// A reduce-scatter and an all-gather of n elements of 16 bits, and sums of
// squares, of which there is one per 1024 elements.
TEST(Zero, Item14AStepSendsAReduceScatterAndAnAllGather) {
  const std::size_t n =
      test::fewer_if_sanitized<std::size_t>({200'003, 1'000'003}, 1).back();
  const ParameterLayout layout =
      ParameterLayout::of({{"a", {n / 3}}, {"b", {n - n / 3}}});
  for (const int world : test::fewer_if_sanitized<int>({2, 4}, 1))
    test::run_ranks("local", world, [&](comm::Communicator& comm) {
      const double share = (world - 1.0) / world;
      const double once = share * 2 * static_cast<double>(n);
      for (const int stage : {1, 2})
        for (const int backwards : {1, 3}) {
          ZeroOptions options = unscaled(stage);
          options.exchange.bucket_elements = 1 << 16;
          ZeroRun run(comm, layout, test::adam_rule(), options);
          const Sent sent = sent_in_window(comm, run, backwards);
          const double want = (stage == 1 ? 2 : backwards + 1) * once;
          EXPECT_NEAR(sent.bytes, want, 0.01 * want)
              << "stage " << stage << ", " << backwards << " backwards";
        }
    });
}

// Whatever lies where other ranks own elements.
TEST(Zero, Item16OnlyOwnedElementsAreUsed) {
  const ParameterLayout layout = test::two_groups();
  test::run_ranks("local", 3, [&](comm::Communicator& comm) {
    ZeroRun clean(comm, layout, test::adam_rule(), unscaled(1));
    ZeroRun run(comm, layout, test::adam_rule(), unscaled(1));
    const auto values =
        test::normal(layout.size(), 9u + static_cast<unsigned>(comm.rank()));
    clean.step(values);
    Buffer grads = run.scaled(values, DType::kFloat16);
    EXPECT_EQ(
        run.optimizer->whole_values().gradient("first", grads.view()).size(),
        1500u);
    std::vector<bool> owned(layout.size());
    for (const ShardBucket& bucket : run.optimizer->shards().buckets()) {
      const Range& own = bucket.pieces[static_cast<std::size_t>(comm.rank())];
      std::fill_n(owned.begin() + static_cast<std::ptrdiff_t>(own.offset),
                  own.size, true);
    }
    for (std::size_t i = 0; i < layout.size(); ++i)
      if (!owned[i])
        grads.as<Half>()[i] = to_half(std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(run.optimizer->step(run.params.view(), grads.view()).applied);
    EXPECT_EQ(run.values(), clean.values());
  });
}

TEST(Zero, Item17AWindowIsReducedOnceAtStage1) {
  const ParameterLayout layout = test::two_groups();
  test::run_ranks("local", 2, [&](comm::Communicator& comm) {
    for (const int stage : {1, 2}) {
      ZeroRun run(comm, layout, test::adam_rule(), unscaled(stage));
      const std::size_t buckets = run.optimizer->gradients().buckets().size();
      EXPECT_GT(buckets, 2u);
      const std::size_t passes = stage == 1 ? 1 : 4;
      // And the norm, and the gathers.
      EXPECT_EQ(sent_in_window(comm, run, 4).collectives,
                passes * buckets + 1 + buckets)
          << "stage " << stage;
    }
  });
}

// ---- experts: parameters of which ranks hold different ones

constexpr std::size_t kExpert = 2300;

// The experts lie between dense parameters.
ParameterLayout with_expert() {
  return ParameterLayout::of(
      {{"before", {1000}, 0}, {"expert", {kExpert}, 1}, {"after", {2100}, 0}});
}

// As DeepSpeed: over the dense ranks, not over those that hold the expert.
TEST(Zero, Item25ExpertGradientsAreDividedByTheDenseRanks) {
  test::run_ranks("local", 4, [](comm::Communicator& comm) {
    for (const int stage : {1, 2}) {
      std::vector<std::vector<float>> seen;
      for (const int experts : {1, 4}) {
        const auto holders = comm.split(comm.rank() % experts);
        ZeroOptions options = unscaled(stage);
        options.experts = {{.group = 1, .comm = holders.get()}};
        ZeroRun run(comm, with_expert(), test::seeing_gradients(), options);
        // The same global batch: with an expert per rank, it alone has all.
        std::vector<float> grads(run.layout.size());
        std::fill_n(grads.begin() + 1000, kExpert,
                    experts == 1 ? static_cast<float>(comm.rank()) : 6.0f);
        EXPECT_TRUE(run.step(grads).applied);
        seen.push_back(
            run.optimizer->whole_values().state("expert", "exp_avg"));
      }
      EXPECT_EQ(seen[0], std::vector<float>(kExpert, 1.5f))
          << "stage " << stage;
      EXPECT_EQ(seen[1], seen[0]) << "stage " << stage;
    }
  });
}

// Experts with other numbers of holders in one model.
TEST(Zero, Item25TheNormCountsEveryExpertOnce) {
  const ParameterLayout layout = ParameterLayout::of(
      {{"dense", {100}, 0}, {"shared", {100}, 1}, {"own", {100}, 2}});
  for (const DType dtype : {DType::kFloat32, DType::kFloat16})
    test::run_ranks("local", 2, [&](comm::Communicator& comm) {
      const auto both = comm.split(0);
      const auto alone = comm.split(comm.rank());
      for (const int stage : {1, 2}) {
        ZeroOptions options = unscaled(stage, dtype);
        options.experts = {{.group = 1, .comm = both.get()},
                           {.group = 2, .comm = alone.get()}};
        ZeroRun run(comm, layout, test::seeing_gradients(), options);
        std::vector<float> grads(300, 3);
        std::fill_n(grads.begin() + 100, 100, 4.0f);
        std::fill_n(grads.begin() + 200, 100, 24.0f);
        // Two experts of 100 times 24 / 2.
        EXPECT_DOUBLE_EQ(run.step(grads).grad_norm,
                         10 * std::sqrt(9.0 + 16 + 2 * 144))
            << "stage " << stage;
      }
    });
}

TEST(Zero, StatesOfExpertsAreLoadedWholeOrNotAtAll) {
  test::run_ranks("local", 4, [](comm::Communicator& comm) {
    const auto holders = comm.split(comm.rank() % 2);
    for (const int stage : {1, 2}) {
      ZeroOptions options = unscaled(stage);
      options.experts = {{.group = 1, .comm = holders.get()}};
      ZeroRun run(comm, with_expert(), test::adam_rule(), options);
      const auto grads = test::normal(run.layout.size(), 5);
      run.step(grads);
      const StateDict state = copy_of(run.optimizer->state());
      ZeroRun other(comm, with_expert(), test::adam_rule(), options);
      const auto before = other.masters();
      const StateDict torn = test::without(state, "exp_avg_sq");
      test::expect_error(ErrorCode::kCorruptCheckpoint, {"exp_avg_sq"},
                         [&] { other.optimizer->load_state_dict(torn); });
      EXPECT_EQ(other.masters(), before);
      other.optimizer->load_state_dict(state);
      run.step(grads);
      other.step(grads);
      EXPECT_EQ(other.values(), run.values()) << "stage " << stage;
    }
  });
}

}  // namespace
}  // namespace thinwire::zero::conformance_step_test
