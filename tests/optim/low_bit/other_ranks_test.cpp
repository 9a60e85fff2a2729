// SPDX-License-Identifier: Apache-2.0
// States of low-bit optimizers, adopted by as many ranks with other buckets,
// and by more or fewer.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <mutex>

#include "optim/low_bit/cases.h"
#include "optim/other_ranks.h"
#include "optim/states.h"
#include "support/same_bits.h"

namespace thinwire::optim::other_ranks_test {
namespace {

using test::Saved;

// An optimizer whose buckets are of a given size.
using Kind = test::OpenCase<std::size_t>;

class OtherRanks : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(All, OtherRanks,
                         ::testing::ValuesIn(test::resumed_cases_of_buckets()),
                         [](const auto& tested) { return tested.param.name; });

// One rank's training: late elements, a group that rests, and gradients that
// are not finite on one rank.
struct Trained {
  std::unique_ptr<Optimizer> optimizer;
  std::vector<float> params;

  StepReport step(std::int64_t t, int rank) {
    for (std::size_t g = 0; g < 2; ++g)
      optimizer->groups().set_learning_rate(
          g, g == 1 && (t == 4 || (t >= 12 && t <= 14))
                 ? 0
                 : 0.001 * static_cast<double>(40 - t));
    auto grads = test::gradient_with_gaps(test::grouped_layout(), t, rank);
    if (t >= 9) grads[1060] = rank == 0 ? 0.5f : 0.0f;  // of "dead"
    if ((t == 5 || t == 13 || t == 15 || t == 18) && rank == 0) grads[7] = NAN;
    return optimizer->step(params, grads);
  }
};

Trained begin(comm::Communicator& comm, const Kind& tested,
              std::size_t bucket) {
  const ParameterLayout layout = test::grouped_layout();
  return {tested.make(bucket)(comm, layout), test::normal(layout.size(), 3)};
}

// Shows all ranks of `comm` what each of them has saved.
class Board {
 public:
  explicit Board(int world) : saved_(static_cast<std::size_t>(world)) {}
  const std::vector<Saved>& exchange(comm::Communicator& comm,
                                     const Optimizer& optimizer) {
    comm.barrier();  // nobody reads the last one any more
    saved_[static_cast<std::size_t>(comm.rank())] = test::save(optimizer);
    comm.barrier();
    return saved_;
  }

 private:
  std::vector<Saved> saved_;
};

// From the weights of the last exchange.
Trained resumed(comm::Communicator& comm, const Kind& tested,
                std::size_t bucket, const std::vector<Saved>& saved,
                ConstView weights) {
  Trained run = begin(comm, tested, bucket);
  test::adopt(comm, *run.optimizer, saved);
  const auto values = weights.as<float>();
  run.params.assign(values.begin(), values.end());
  if (LocalSteps* const local = run.optimizer->local_steps())
    local->repeat(run.params);
  return run;
}

TEST_P(OtherRanks, TheSameNumberContinuesBitEqualWithOtherBuckets) {
  const Kind& tested = GetParam();
  for (const int world : {1, 2, 3}) {
    Board board(world);
    comm::run_local_ranks(world, [&](comm::Communicator& comm) {
      Trained main = begin(comm, tested, 900);
      std::deque<Trained> others;
      for (std::int64_t t = 1; t <= tested.steps; ++t) {
        const auto& saved = board.exchange(comm, *main.optimizer);
        Trained& latest = others.emplace_back(
            resumed(comm, tested, 300, saved,
                    optim::exchanged_params(*main.optimizer, main.params)));
        EXPECT_EQ(latest.params, main.params) << "before step " << t;
        EXPECT_EQ(optim::steps_behind(*latest.optimizer),
                  optim::steps_behind(*main.optimizer));
        if (others.size() > 5) others.pop_front();
        (void)main.step(t, comm.rank());
        for (Trained& other : others) {
          (void)other.step(t, comm.rank());
          ASSERT_EQ(other.params, main.params) << "step " << t;
        }
      }
    });
  }
}

TEST_P(OtherRanks, MoreOrFewerRanksContinueWithEqualParameters) {
  const Kind& tested = GetParam();
  const ParameterLayout layout = test::grouped_layout();
  Board board(3);
  for (std::int64_t until = 0; until < tested.steps; until += 2) {
    std::vector<float> weights;
    const std::vector<Saved>* saved = nullptr;
    comm::run_local_ranks(3, [&](comm::Communicator& comm) {
      Trained run = begin(comm, tested, 900);
      for (std::int64_t t = 1; t <= until; ++t) (void)run.step(t, comm.rank());
      const auto& all = board.exchange(comm, *run.optimizer);
      if (comm.rank() != 0) return;
      saved = &all;
      const auto theta = optim::exchanged_params(*run.optimizer, run.params);
      weights.assign(theta.as<float>().begin(), theta.as<float>().end());
    });
    for (const int world : {1, 2, 4})
      comm::run_local_ranks(world, [&](comm::Communicator& comm) {
        Trained run = resumed(comm, tested, 700, *saved, weights);
        for (std::int64_t t = until + 1; t <= until + 4; ++t)
          (void)run.step(t, comm.rank());
        optim::synchronize(*run.optimizer, run.params);
        std::vector<float> first = run.params;
        comm.broadcast(first, 0);
        EXPECT_EQ(run.params, first) << "saved after " << until;
        for (const float p : run.params) ASSERT_TRUE(std::isfinite(p));
      });
  }
}

// ---- what a state says of itself

void expect_described(const State& state, const StateDict& values,
                      const ParameterLayout& layout) {
  std::set<std::string> names;
  for (const StateArray& array : state.arrays) {
    EXPECT_TRUE(names.insert(array.name).second) << array.name;
    std::size_t elements = 0;
    for (const Range& range : array.ranges) {
      elements += range.size;
      EXPECT_LE(range.end(), layout.size()) << array.name;
    }
    const auto size_is = [&](std::size_t size) {
      EXPECT_EQ(array.size, size) << array.name;
    };
    if (array.axis == Axis::kElement) size_is(elements);
    if (array.axis == Axis::kRange) size_is(array.ranges.size());
    if (array.axis == Axis::kParameter) size_is(layout.parameters().size());
    if (array.axis == Axis::kGroup) size_is(layout.num_groups());
    // Read in pieces it is what it is as a whole.
    for (const std::size_t piece : {std::size_t{7}, std::size_t{1030}})
      for (std::size_t at = 0; at < array.size; at += piece) {
        Buffer part(std::min(piece, array.size - at), array.dtype);
        array.read({at, part.size()}, part.view());
        const ConstView whole =
            values.array(array.name).subview(at, part.size());
        ASSERT_TRUE(test::same_bytes(part.view(), whole))
            << array.name << " from " << at;
      }
  }
}

TEST_P(OtherRanks, EveryArrayHasItsAxisAndSharing) {
  const Kind& tested = GetParam();
  const ParameterLayout layout = test::grouped_layout();
  constexpr int kWorld = 3;
  Board board(kWorld);
  comm::run_local_ranks(kWorld, [&](comm::Communicator& comm) {
    Trained run = begin(comm, tested, 900);
    for (std::int64_t t = 0; t <= tested.steps; ++t) {
      if (t > 0) (void)run.step(t, comm.rank());
      const State state = run.optimizer->state();
      const StateDict values = copy_of(state);
      expect_described(state, values, layout);
      const auto& all = board.exchange(comm, *run.optimizer);
      // Every compressed element is served by one rank, always.
      std::set<std::size_t> served;
      std::size_t count = 0;
      for (const Saved& saved : all)
        for (const Range& range : saved.what.shard)
          for (std::size_t i = range.offset; i < range.end(); ++i, ++count)
            served.insert(i);
      EXPECT_EQ(served.size(), count);
      const StateArray* const e = state.find("worker_error");
      const StateArray* const d = state.find("server_error");
      ASSERT_EQ(e == nullptr, d == nullptr);
      if (e != nullptr) {
        EXPECT_EQ(e->size, count);
        EXPECT_EQ(e->sharing, Sharing::kMean);
        EXPECT_EQ(d->ranges, state.shard);
        EXPECT_EQ(d->sharing, Sharing::kSharded);
      }
      // All ranks have the same arrays, and what is said to be the same is.
      ASSERT_EQ(state.arrays.size(), all[0].what.arrays.size());
      for (std::size_t k = 0; k < state.arrays.size(); ++k)
        EXPECT_EQ(state.arrays[k].name, all[0].what.arrays[k].name);
      for (const StateArray& array : state.arrays)
        if (array.sharing == Sharing::kSame) {
          const ConstView own =
              all[static_cast<std::size_t>(comm.rank())].values.array(
                  array.name);
          const ConstView first = all[0].values.array(array.name);
          EXPECT_TRUE(test::same_bytes(own, first))
              << array.name << " after step " << t;
        }
      EXPECT_TRUE(test::same_state(state.common, all[0].what.common));
      if (const StateArray* const origin = state.find("origin")) {
        EXPECT_TRUE(origin->is_parameters);
        const auto theta =
            optim::exchanged_params(*run.optimizer, run.params).as<float>();
        const auto saved = values.array("origin").as<float>();
        EXPECT_TRUE(std::ranges::equal(theta, saved)) << "after step " << t;
      }
    }
  });
}

}  // namespace
}  // namespace thinwire::optim::other_ranks_test
