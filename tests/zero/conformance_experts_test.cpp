// SPDX-License-Identifier: Apache-2.0
// Items of docs/conformance.md about experts: parameters of which ranks hold
// different ones.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "optim/states.h"
#include "support/errors.h"
#include "support/sanitizers.h"
#include "thinwire/optim/data_parallel.h"
#include "zero/support.h"

namespace thinwire::zero::conformance_experts_test {
namespace {

using test::unscaled;
using test::ZeroRun;

constexpr std::size_t kDense = 3100;
constexpr std::size_t kExpert = 2300;

// The experts lie between dense parameters.
ParameterLayout with_expert() {
  return ParameterLayout::of(
      {{"before", {1000}, 0}, {"expert", {kExpert}, 1}, {"after", {2100}, 0}});
}

// The same model where every rank holds all `experts`.
ParameterLayout dense_layout(int experts) {
  std::vector<ParameterSpec> specs = {{"before", {1000}, 0}};
  for (int e = 0; e < experts; ++e)
    specs.push_back({"expert" + std::to_string(e), {kExpert}, 1});
  specs.push_back({"after", {2100}, 0});
  return ParameterLayout::of(std::move(specs));
}

// Small multiples of a power of two: every sum is exact in 16 bits.
std::vector<float> exact_gradient(std::size_t size, unsigned seed) {
  std::vector<float> values;
  for (const std::uint32_t word : test::random_words(size, seed))
    values.push_back(static_cast<float>(static_cast<int>(word % 33) - 16) / 64);
  return values;
}

// What a rank that holds expert `own` of `experts` knows of the dense model's
// gradient: of the others' parameters nothing.
std::vector<float> in_dense(const std::vector<float>& grads, int own,
                            int experts) {
  std::vector<float> dense(kDense +
                           static_cast<std::size_t>(experts) * kExpert);
  std::copy_n(grads.begin(), 1000, dense.begin());
  std::copy_n(grads.begin() + 1000, kExpert,
              dense.begin() + 1000 +
                  static_cast<std::ptrdiff_t>(own) *
                      static_cast<std::ptrdiff_t>(kExpert));
  std::copy_n(grads.end() - 2100, 2100, dense.end() - 2100);
  return dense;
}

struct Experts {
  int own = 0;     // which this rank holds
  int of_all = 1;  // how many there are
  std::unique_ptr<comm::Communicator> holders;
};

Experts share_out(comm::Communicator& comm, int experts) {
  const int own = comm.rank() % experts;
  return {own, experts, comm.split(own)};
}

// Trains both ways; parameters agree bit for bit, as sums are exact.
void expect_as_dense(comm::Communicator& comm, int stage, DType dtype,
                     int experts, int backwards) {
  const Experts held = share_out(comm, experts);
  ZeroOptions options = unscaled(stage, dtype);
  ZeroOptions dense_options = options;
  options.experts = {{.group = 1, .comm = held.holders.get()}};
  const ParameterLayout dense = dense_layout(experts);
  const auto rule = test::adam_rule({.learning_rate = 0.01});
  ZeroRun run(comm, with_expert(), rule, options);
  ZeroRun want(comm, dense, rule, dense_options);
  // The same parameters to begin with.
  const auto start = want.masters();
  const auto name = "expert" + std::to_string(held.own);
  const auto copy = [&](const char* to, const std::string& from) {
    run.optimizer->whole_values().set_parameter(
        to, want.optimizer->whole_values().parameter(from));
  };
  copy("before", "before");
  copy("after", "after");
  const std::size_t first = dense.parameter(name).offset;
  run.optimizer->whole_values().set_parameter(
      "expert",
      std::vector<float>(start.begin() + static_cast<long>(first),
                         start.begin() + static_cast<long>(first + kExpert)));
  for (unsigned t = 0; t < 3; ++t) {
    std::vector<std::vector<float>> window, dense_window;
    for (int k = 0; k < backwards; ++k) {
      window.push_back(exact_gradient(kDense + kExpert,
                                      100 * t + 10 * static_cast<unsigned>(k) +
                                          static_cast<unsigned>(comm.rank())));
      dense_window.push_back(in_dense(window.back(), held.own, experts));
    }
    const auto report = run.window(window);
    const auto dense_report = want.window(dense_window);
    EXPECT_TRUE(report.applied);
    EXPECT_NEAR(report.grad_norm, dense_report.grad_norm,
                1e-12 * dense_report.grad_norm);
  }
  EXPECT_EQ(run.optimizer->whole_values().parameter("before"),
            want.optimizer->whole_values().parameter("before"));
  EXPECT_EQ(run.optimizer->whole_values().parameter("after"),
            want.optimizer->whole_values().parameter("after"));
  const auto own = run.optimizer->whole_values().parameter("expert");
  const auto all = want.masters();
  EXPECT_TRUE(std::equal(own.begin(), own.end(),
                         all.begin() + static_cast<std::ptrdiff_t>(first)))
      << "stage " << stage << ", " << experts << " experts, " << backwards
      << " backwards";
}

TEST(Zero, Item24ExpertsTrainAsInADenseModel) {
  for (const int experts : {1, 2, 4})
    for (const DType dtype : test::fewer_if_sanitized<DType>(
             {DType::kFloat16, DType::kFloat32, DType::kBFloat16}, 1))
      test::run_ranks("local", 4, [&](comm::Communicator& comm) {
        for (const int stage : {1, 2})
          for (const int backwards : {1, 2})
            expect_as_dense(comm, stage, dtype, experts, backwards);
      });
}

// As DeepSpeed: over the dense ranks, not over those that hold the expert.
TEST(Zero, Item25ExpertGradientsAreDividedByTheDenseRanks) {
  test::run_ranks("local", 4, [](comm::Communicator& comm) {
    for (const int stage : {1, 2}) {
      std::vector<std::vector<float>> seen;
      for (const int experts : {1, 4}) {
        const Experts held = share_out(comm, experts);
        ZeroOptions options = unscaled(stage);
        options.experts = {{.group = 1, .comm = held.holders.get()}};
        ZeroRun run(comm, with_expert(), test::seeing_gradients(), options);
        // The same global batch: with an expert per rank, it alone has all.
        std::vector<float> grads(kDense + kExpert);
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

TEST(Zero, AnOverflowInOneExpertSkipsTheStepOnAllRanks) {
  test::run_ranks("local", 4, [](comm::Communicator& comm) {
    const Experts held = share_out(comm, 2);
    for (const int stage : {1, 2})
      for (int guilty = 0; guilty < 4; ++guilty) {
        ZeroOptions options = unscaled(stage);
        options.experts = {{.group = 1, .comm = held.holders.get()}};
        ZeroRun run(comm, with_expert(), test::adam_rule(), options);
        std::vector<float> grads(kDense + kExpert, 1);
        if (comm.rank() == guilty)
          grads[2000] = std::numeric_limits<float>::infinity();
        const auto before = run.values();
        EXPECT_FALSE(run.step(grads).applied);
        EXPECT_EQ(run.values(), before);
        EXPECT_EQ(run.optimizer->progress().skipped, 1);
      }
  });
}

TEST(Zero, StatesOfExpertsAreLoadedWholeOrNotAtAll) {
  test::run_ranks("local", 4, [](comm::Communicator& comm) {
    const Experts held = share_out(comm, 2);
    for (const int stage : {1, 2}) {
      ZeroOptions options = unscaled(stage);
      options.experts = {{.group = 1, .comm = held.holders.get()}};
      ZeroRun run(comm, with_expert(), test::adam_rule(), options);
      const auto grads = exact_gradient(kDense + kExpert, 5);
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
}  // namespace thinwire::zero::conformance_experts_test
