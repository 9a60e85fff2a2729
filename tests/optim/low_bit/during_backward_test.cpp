// SPDX-License-Identifier: Apache-2.0
// ExchangeOptions::during_backward: 1-bit Adam's exchange begun before all
// gradients are there gives the bits of one that began after.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "optim/low_bit/cases.h"
#include "optim/low_bit/late_cases.h"
#include "optim/states.h"
#include "support/converted.h"
#include "support/errors.h"
#include "thinwire/core/memory.h"

namespace thinwire::optim::during_backward_test {
namespace {

using Gradient = std::vector<float> (*)(const ParameterLayout&, std::int64_t,
                                        int);
/// Passes ranges to reduce() before step t.
using HandOver = std::function<void(Optimizer&, View grads, std::int64_t t)>;

void nothing(Optimizer&, View, std::int64_t) {}

void last_first(Optimizer& optimizer, View grads, std::int64_t) {
  const std::vector<Range> buckets = optimizer.early()->buckets();
  for (std::size_t k = buckets.size(); k-- > 0;)
    optimizer.early()->reduce(grads, buckets[k]);
}

void first_first(Optimizer& optimizer, View grads, std::int64_t) {
  for (const Range& bucket : optimizer.early()->buckets())
    optimizer.early()->reduce(grads, bucket);
}

// Two thirds of them, others in each step, from the middle on.
void some(Optimizer& optimizer, View grads, std::int64_t t) {
  const std::vector<Range> buckets = optimizer.early()->buckets();
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const std::size_t k = (i + buckets.size() / 2) % buckets.size();
    if ((k + static_cast<std::size_t>(t)) % 3 != 0)
      optimizer.early()->reduce(grads, buckets[k]);
  }
}

// One rank's results of every step.
struct Outcome {
  std::vector<float> params;
  double norm = 0, clip = 0;
  bool applied = false;
  std::size_t revived = 0;
  std::uint64_t bytes = 0;             // from backward on
  std::shared_ptr<StateDict> state{};  // after the last step

  [[nodiscard]] bool operator==(const Outcome& other) const {
    return params == other.params && norm == other.norm && clip == other.clip &&
           applied == other.applied && revived == other.revived;
  }
};

constexpr std::int64_t kSteps = 11;

// Element [t - 1][r]. Saved and loaded after the step `loads_after`; 0: never.
std::vector<std::vector<Outcome>> run(int world, const OnebitAdamOptions& o,
                                      Gradient gradient,
                                      const HandOver& hand_over,
                                      std::int64_t loads_after = 0) {
  const ParameterLayout layout = test::late_layout();
  std::vector<std::vector<Outcome>> all(
      kSteps, std::vector<Outcome>(static_cast<std::size_t>(world)));
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    auto own_optimizer = std::make_unique<OnebitAdam>(comm, layout, o);
    std::vector<float> params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= kSteps; ++t) {
      OnebitAdam& optimizer = *own_optimizer;
      auto grads = gradient(layout, t, comm.rank());
      const std::uint64_t before = comm.counters().bytes_sent;
      if (optimizer.early()->reduces()) hand_over(optimizer, grads, t);
      const StepReport report = optimizer.step(params, grads);
      Outcome& own = all[static_cast<std::size_t>(t - 1)][rank];
      own = {params,
             report.grad_norm,
             report.clip_factor,
             report.applied,
             report.revived,
             comm.counters().bytes_sent - before,
             {}};
      if (t == kSteps)
        own.state = std::make_shared<StateDict>(copy_of(optimizer.state()));
      if (t != loads_after) continue;
      const StateDict state = copy_of(optimizer.state());
      own_optimizer = std::make_unique<OnebitAdam>(comm, layout, o);
      own_optimizer->load_state_dict(state);
    }
  });
  return all;
}

// Overflows on one rank, twice in a row, spikes, and a long gradient after one.
std::vector<float> eventful(const ParameterLayout& layout, std::int64_t t,
                            int rank) {
  std::vector<float> values = test::gradient(layout.size(), t, rank);
  for (float& value : values) value *= t == 5 || t == 9 ? 40.0f : 1.0f;
  if (rank == 0 && (t == 6 || t == 7)) values[values.size() / 2] = INFINITY;
  return values;
}

struct Case {
  std::string name;
  OnebitAdamOptions options;
  Gradient gradient;
};

std::vector<Case> cases() {
  OnebitAdamOptions plain{.learning_rate = 0.02,
                          .freeze = {.step = test::kLateFreeze}};
  plain.compression.exchange.bucket_elements = 900;
  OnebitAdamOptions clipped = plain;
  clipped.compression.exchange.max_grad_norm = 20;
  clipped.compression.exchange.lagged_clipping = true;
  OnebitAdamOptions bf16 = clipped;
  bf16.compression.residual_dtype = DType::kBFloat16;
  OnebitAdamOptions groups = test::with_second_group(clipped);
  groups.groups[1].non_freeze = true;
  OnebitAdamOptions threads = clipped;
  threads.compression.exchange.num_threads = 3;
  OnebitAdamOptions tiny = clipped;
  tiny.compression.exchange.bucket_elements = 1;
  OnebitAdamOptions whole = clipped;
  whole.compression.exchange.bucket_elements = 1 << 20;
  OnebitAdamOptions taken = clipped;
  taken.compression.exchange.skip_nonfinite = false;
  return {{"plain", plain, eventful},
          {"clipped", clipped, eventful},
          {"bf16", bf16, eventful},
          {"groups", groups, eventful},
          {"threads", threads, eventful},
          {"tiny_buckets", tiny, eventful},
          {"one_bucket", whole, eventful},
          {"late", clipped, test::late_gradient},
          {"late_bf16", bf16, test::late_gradient},
          {"heavy", plain, test::heavy_gradient},
          {"spiked_elements", plain, test::spiked_gradient},
          {"spiked_threads", threads, test::spiked_gradient}};
}

class DuringBackward : public ::testing::TestWithParam<std::tuple<int, Case>> {
};
INSTANTIATE_TEST_SUITE_P(All, DuringBackward,
                         ::testing::Combine(::testing::Values(1, 3),
                                            ::testing::ValuesIn(cases())),
                         test::kNameAndWorld);

TEST_P(DuringBackward, GivesTheSameBitsForAnyOrderOfGradients) {
  const auto& [world, tested] = GetParam();
  const auto want = run(world, tested.options, tested.gradient, nothing);
  OnebitAdamOptions early = tested.options;
  early.compression.exchange.during_backward = true;
  using Way = std::pair<HandOver, std::int64_t>;
  for (const auto& [hand_over, loads_after] :
       {Way(nothing, 0), Way(last_first, 0), Way(last_first, 5),
        Way(first_first, 0), Way(some, 0)}) {
    const auto got = run(world, early, tested.gradient, hand_over, loads_after);
    for (std::size_t t = 0; t < got.size(); ++t)
      ASSERT_EQ(got[t], want[t]) << "step " << t + 1;
    for (std::size_t r = 0; r < got.back().size(); ++r)
      EXPECT_TRUE(
          test::same_state(*got.back()[r].state, *want.back()[r].state));
  }
}

// Step 4 is the first compressed one; 5 and 9 are spikes, 6 and 7 skipped.
TEST(DuringBackward, SendsTwiceOnlyAfterAWrongAssumption) {
  OnebitAdamOptions o{.freeze = {.step = 3},
                      .compression = {.exchange = {.max_grad_norm = 20,
                                                   .lagged_clipping = true,
                                                   .bucket_elements = 900}}};
  const auto plain = run(2, o, eventful, nothing);
  o.compression.exchange.during_backward = true;
  const auto early = run(2, o, eventful, last_first);
  for (std::size_t t = 3; t < kSteps; ++t) {
    const std::uint64_t once = plain[3][0].bytes;
    const bool is_spike = t + 1 == 5 || t + 1 == 9;
    SCOPED_TRACE(t + 1);
    if (!early[t][0].applied) {
      EXPECT_GT(early[t][0].bytes, once / 2);  // and then nothing more
      EXPECT_LT(early[t][0].bytes, once);
    } else if (is_spike) {
      EXPECT_GT(early[t][0].bytes, once * 3 / 2);
      EXPECT_LT(early[t][0].bytes, once * 2);
    } else {
      EXPECT_EQ(early[t][0].bytes, once);
    }
  }
}

TEST(DuringBackward, RepeatsItsExchangeIfAnElementIsActivated) {
  OnebitAdamOptions o{.freeze = {.step = test::kLateFreeze},
                      .compression = {.exchange = {.during_backward = true}}};
  const auto got = run(2, o, test::late_gradient, last_first);
  const auto& first = got[test::kFirstLate - 1][0];
  EXPECT_GT(first.revived, 0u);
  EXPECT_GT(first.bytes, got[test::kFirstLate - 2][0].bytes * 3 / 2);
}

// fp16 gradients, and a loss scale that is not that of the step before.
TEST(DuringBackward, NoticesAChangedLossScale) {
  const ParameterLayout layout = test::late_layout();
  std::vector<std::vector<float>> results;
  for (const bool is_early : {false, true})
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      OnebitAdam optimizer(
          comm, layout,
          {.freeze = {.step = 2},
           .compression = {.exchange = {.during_backward = is_early}}});
      std::vector<float> params = test::normal(layout.size(), 3);
      for (std::int64_t t = 1; t <= 6; ++t) {
        const double scale = t < 5 ? 64 : 32;
        auto values = test::gradient(layout.size(), t, comm.rank());
        for (float& value : values) value *= static_cast<float>(scale);
        Buffer grads = test::converted(values, DType::kFloat16);
        if (is_early) last_first(optimizer, grads.view(), t);
        EXPECT_TRUE(optimizer
                        .step({.params = params,
                               .grads = grads.view(),
                               .loss_scale = scale})
                        .applied);
      }
      if (comm.rank() == 0) results.push_back(params);
    });
  EXPECT_EQ(results[0], results[1]);
}

// The exchange belongs to a compressed step, or to an exact one of few bits.
TEST(DuringBackward, RefusesCallsThatWouldDisturbItAndContinues) {
  const ParameterLayout layout = test::late_layout();
  const Range last{2048, layout.size() - 2048};
  const ExchangeOptions early{.during_backward = true, .bucket_elements = 900};
  for (const OnebitAdamOptions& o :
       {OnebitAdamOptions{.freeze = {.step = 1},
       .compression = {.exchange = early}},
        OnebitAdamOptions{.freeze = {.step = 100, .warmup_bits = 8},
        .compression = {.exchange = {.bucket_elements = 900}}}})
    comm::run_local_ranks(3, [&](comm::Communicator& comm) {
      OnebitAdam optimizer(comm, layout, o);
      std::vector<float> params = test::normal(layout.size(), 3);
      (void)test::step_of(optimizer, params, 1, comm.rank());
      const StateDict state = copy_of(optimizer.state());
      auto grads = test::gradient(layout.size(), 2, comm.rank());
      optimizer.early()->reduce(grads, last);
      for (const Range& again : {last, Range{3072, 1024}})
        test::expect_invalid({"range", "apart from what is under way"},
                             [&] { optimizer.early()->reduce(grads, again); });
      test::expect_invalid({"range", "1024"}, [&] {
        optimizer.early()->reduce(grads, {0, 5});
      });
      for (const auto& call : std::vector<std::function<void()>>{
               [&] { (void)copy_of(optimizer.state()); },
               [&] { optimizer.load_state_dict(state); },
               [&] { (void)optimizer.residual_ratio(); }})
        test::expect_error(ErrorCode::kFailedPrecondition,
                           {"between reduce() and step()", "warmup_bits"},
                           call);
      auto others = grads;
      test::expect_invalid({"StepInput.grads", "reduce()"},
                           [&] { (void)optimizer.step(params, others); });
      EXPECT_TRUE(optimizer.step(params, grads).applied);
    });
}

TEST(DuringBackward, MayBeDestroyedInFlight) {
  const ParameterLayout layout = test::late_layout();
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    std::vector<float> params = test::normal(layout.size(), 3);
    auto grads = test::gradient(layout.size(), 1, comm.rank());
    {
      OnebitAdam optimizer(
          comm, layout,
          {.freeze = {.step = 1},
           .compression = {
               .exchange = {.during_backward = true, .bucket_elements = 900}}});
      (void)optimizer.step(params, grads);
      const std::vector<Range> buckets = optimizer.early()->buckets();
      for (std::size_t k = buckets.size(); k-- > 1;)
        optimizer.early()->reduce(grads, buckets[k]);
    }
    comm.barrier();
  });
}

TEST(DuringBackward, TakesASecondSetOfResidualsAndRecords) {
  const ParameterLayout layout = ParameterLayout::of({{"p", {256, 1024}}});
  const auto n = static_cast<double>(layout.size());
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    std::vector<double> used;
    for (const bool is_early : {false, true})
      comm::run_local_ranks(4, [&](comm::Communicator& comm) {
        OnebitAdam optimizer(
            comm, layout,
            {.freeze = {.step = 1},
             .compression = {.residual_dtype = dtype,
                             .exchange = {.during_backward = is_early,
                                          .bucket_elements = 1 << 14}}});
        std::vector<float> params(layout.size());
        for (std::int64_t t = 1; t <= 2; ++t)
          (void)test::step_of(optimizer, params, t, comm.rank());
        if (comm.rank() == 0)
          used.push_back(static_cast<double>(memory_use().total()));
      });
    const double residual = dtype == DType::kFloat32 ? 4 : 2;
    // Two buckets' records are received twice, too.
    const double slots = 2 * (1 << 14) * (1.0 / 8 + 4.0 / 1024);
    EXPECT_NEAR(used[1] - used[0],
                n * (residual + residual / 4 + 1.0 / 8 + 4.0 / 1024) + slots,
                0.01 * n * residual);
  }
}

}  // namespace
}  // namespace thinwire::optim::during_backward_test
