// SPDX-License-Identifier: Apache-2.0
// Few bits during backward: in which order gradients come, and when buckets
// are waited for, changes neither a bit nor what is sent. Residuals and
// replicas in states.
#include <gtest/gtest.h>

#include <limits>

#include "optim/other_ranks.h"
#include "optim/states.h"
#include "support/sanitizers.h"
#include "zero/support.h"
#include "zero/ways.h"

namespace thinwire::zero::low_bit_ways_test {
namespace {

using test::Handed;
using test::Saved;
using test::train_with_overflows;
using test::two_groups;
using test::ZeroRun;
using Floats = std::vector<float>;

constexpr unsigned kSteps = 3;
constexpr auto kFloat32 = DType::kFloat32;

struct Way {
  Handed order = Handed::kBackwards;
  bool overlap = true;
  bool is_known = true;  // the last backward, when it begins
};

std::vector<Way> all_ways_of(unsigned backwards) {
  std::vector<Way> all;
  for (const Handed order :
       {Handed::kForwards, Handed::kBackwards, Handed::kShuffled})
    for (const bool overlap : {true, false})
      for (const bool is_known : {true, false})
        if (is_known || backwards > 1)
          all.push_back({order, overlap, is_known});
  return all;
}

struct Case {
  int stage = 1;
  unsigned backwards = 1;
  DType dtype = kFloat32;
  WireOptions wire{.bits_up = 4, .bits_down = 8, .residual_dtype = kFloat32};
};

struct Outcome {
  std::vector<Floats> params;  // after each step
  comm::Counters sent;         // in all of them
  std::uint64_t early = 0;     // bytes of these, queued before step()
};

Floats gradient(const Case& c, unsigned step, unsigned k, int rank) {
  auto values = test::normal(two_groups().size(),
                             100 * step + 10 * k + static_cast<unsigned>(rank));
  return test::floats_of(test::rounded(values, c.dtype).view());
}

Outcome train(comm::Communicator& comm, const Case& c, const Way& way) {
  ZeroRun run(comm, two_groups(), test::adam_rule(),
              {.stage = c.stage,
               .dtype = c.dtype,
               .loss_scale = {.initial_scale = 8, .dynamic = false},
               .exchange = {.max_grad_norm = 20, .bucket_elements = 2048},
               .wire = c.wire,
               .overlap = way.overlap});
  const comm::Counters before = comm.counters();
  Outcome outcome;
  for (unsigned t = 0; t < kSteps; ++t) {
    const std::uint64_t begun = comm.counters().bytes_sent;
    // Every rank in an order of its own, in every backward another.
    for (unsigned k = 0; k < c.backwards; ++k)
      test::hand_over(
          *run.optimizer, run.layout,
          run.scaled(gradient(c, t, k, comm.rank()), c.dtype).view(), way.order,
          7 * t + 3 * k + static_cast<unsigned>(comm.rank()),
          {.is_first = k == 0,
           .is_last = way.is_known && k + 1 == c.backwards});
    outcome.early += comm.counters().bytes_sent - begun;
    EXPECT_TRUE(run.optimizer->step().applied);
    outcome.params.push_back(run.values());
  }
  outcome.sent = comm.counters() - before;
  return outcome;
}

// Returns the traffic of stage 1's agreements before a window is sent.
comm::Counters cost_of_agreements(comm::Communicator& comm) {
  const comm::Counters before = comm.counters();
  for (unsigned t = 0; t < kSteps; ++t) {
    std::int64_t none = 0;
    comm.all_reduce(std::span(&none, 1), comm::ReduceOp::kMax);
  }
  return comm.counters() - before;
}

void expect_same(const Outcome& got, const Outcome& want,
                 const comm::Counters& more) {
  EXPECT_EQ(got.params, want.params);
  EXPECT_EQ(got.sent.bytes_sent, want.sent.bytes_sent + more.bytes_sent);
  EXPECT_EQ(got.sent.messages, want.sent.messages + more.messages);
  EXPECT_EQ(got.sent.collectives, want.sent.collectives + more.collectives);
}

TEST(LowBitWays, HaveTheSameBitsAndTraffic) {
  for (const DType dtype : test::fewer_if_sanitized<DType>(
           {kFloat32, DType::kFloat16, DType::kBFloat16}, 1))
    test::run_ranks("local", 3, [&](comm::Communicator& comm) {
      const comm::Counters agreements = cost_of_agreements(comm);
      const Outcome single = train(comm, {.dtype = dtype}, {});
      // Of all ranks n/2 bytes each, less the third that stays, and scales.
      auto up = static_cast<std::int64_t>(single.early);
      comm.all_reduce(std::span(&up, 1));
      const auto codes = static_cast<double>(kSteps * two_groups().size());
      EXPECT_NEAR(static_cast<double>(up), codes, 0.03 * codes);
      for (const int stage : {1, 2})
        for (const unsigned backwards : {1u, 2u, 3u}) {
          const Case c{.stage = stage, .backwards = backwards, .dtype = dtype};
          const Outcome want = train(comm, c, {});
          // A window sends what one backward does; one backward has the same
          // bits at both stages.
          EXPECT_EQ(want.sent.bytes_sent, single.sent.bytes_sent);
          EXPECT_EQ(want.sent.messages, single.sent.messages);
          EXPECT_EQ(want.params == single.params, backwards == 1);
          for (const Way& way : all_ways_of(backwards)) {
            SCOPED_TRACE(testing::Message()
                         << to_string(dtype) << " stage " << stage << ", "
                         << backwards << " backwards, order "
                         << static_cast<int>(way.order) << ", overlap "
                         << way.overlap << ", known " << way.is_known);
            const bool agrees = stage == 1 && !way.overlap;
            const Outcome got = train(comm, c, way);
            expect_same(got, want, agrees ? agreements : comm::Counters{});
            EXPECT_EQ(got.early, agrees || !way.is_known ? 0 : single.early);
          }
        }
    });
}

// One rank overflows in one bucket of one backward: its first element or its
// last. With kKeep the run goes on as if that window had not been.
TEST(LowBitWays, AWindowThatOverflowsAnywhereIsForgotten) {
  const Case c{.stage = 2,
               .backwards = 2,
               .wire = {.bits_up = 4,
                        .bits_down = 4,
                        .residual_dtype = kFloat32,
                        .after_skip = AfterSkip::kKeep}};
  for (const int stage : {1, 2})
    for (const bool overlap : {true, false})
      test::run_ranks("local", 3, [&](comm::Communicator& comm) {
        const ZeroOptions options{.stage = stage,
                                  .exchange = {.bucket_elements = 2048},
                                  .wire = c.wire,
                                  .overlap = overlap};
        ZeroRun run(comm, two_groups(), test::adam_rule(), options);
        ZeroRun calm(comm, two_groups(), test::adam_rule(), options);
        const auto window = [&](unsigned t) {
          return std::vector<Floats>{gradient(c, t, 0, comm.rank()),
                                     gradient(c, t, 1, comm.rank())};
        };
        unsigned t = 0;
        int guilty = 0;
        const auto buckets = run.optimizer->gradients().buckets();
        EXPECT_GE(buckets.size(), 3u);
        for (const Range& bucket : buckets)
          for (const std::size_t at : {bucket.offset, bucket.end() - 1})
            for (const std::size_t k : {0u, 1u}) {
              auto bad = window(++t);
              guilty = (guilty + 1) % 3;
              if (comm.rank() == guilty)
                bad[k][at] = std::numeric_limits<float>::infinity();
              EXPECT_FALSE(run.window(bad).applied);
              const auto good = window(++t);
              EXPECT_TRUE(run.window(good).applied);
              EXPECT_TRUE(calm.window(good).applied);
              EXPECT_EQ(run.values(), calm.values())
                  << "bucket " << bucket.offset << ", element " << at
                  << ", backward " << k << ", stage " << stage;
            }
      });
}

// ---- states of the same ranks, of others, and of ZeRO without few bits

ZeroOptions few_bits(int stage, DType dtype, AfterSkip after) {
  return {.stage = stage,
          .dtype = dtype,
          .loss_scale = {.initial_scale = 64, .window = 2, .hysteresis = 2},
          .exchange = {.max_grad_norm = 20, .bucket_elements = 2048},
          .wire = {.bits_up = 4,
                   .bits_down = 4,
                   .residual_dtype = DType::kFloat32,
                   .after_skip = after}};
}

struct Checkpoint {
  std::vector<Saved> states;
  std::vector<float> params;
  std::vector<float> masters;
  std::vector<double> residual;  // the ranks' mean
};

Checkpoint saved_by(int world, DType dtype) {
  Checkpoint made{
      std::vector<Saved>(static_cast<std::size_t>(world)), {}, {}, {}};
  test::run_ranks("local", world, [&](comm::Communicator& comm) {
    ZeroRun run(comm, two_groups(), test::adam_rule(),
                few_bits(2, dtype, AfterSkip::kKeep));
    train_with_overflows(comm, run, 0, 2);
    made.states[static_cast<std::size_t>(comm.rank())] =
        test::save(*run.optimizer);
    const auto masters = run.masters();
    const StateDict state = copy_of(run.optimizer->state());
    const auto own = test::floats_of(state.array("worker_error"));
    std::vector<double> sum(own.begin(), own.end());
    comm.all_reduce(sum);
    if (comm.rank() != 0) return;
    made.params = run.values();
    made.masters = masters;
    for (const double e : sum) made.residual.push_back(e / world);
  });
  return made;
}

void adopt(comm::Communicator& comm, ZeroRun& run, const Checkpoint& from) {
  kernels::convert(from.params, run.params.view());
  StateDict state = test::OtherRanks(from.states, comm.rank(), comm.size())
                        .state_for(run.optimizer->state());
  run.optimizer->adopt(std::move(state))();
}

// A group of one keeps nothing back: its first gradient that counts is longer.
TEST(LowBitState, ASingleRankAddsTheResidualsOfSeveralRanks) {
  const Checkpoint from = saved_by(3, DType::kFloat32);
  test::run_ranks("local", 1, [&](comm::Communicator& comm) {
    ZeroRun run(comm, two_groups(), test::adam_rule(),
                few_bits(2, DType::kFloat32, AfterSkip::kAuto));
    adopt(comm, run, from);
    EXPECT_EQ(run.masters(), from.masters);
    const std::size_t n = run.layout.size();
    // They are still there after a skipped step, and in a state.
    EXPECT_FALSE(run.step(std::vector<float>(n, INFINITY)).applied);
    run.optimizer->load_state_dict(copy_of(run.optimizer->state()));
    const auto grads = test::normal(n, 1);
    run.backward(grads);
    const auto paid = run.gradient();
    for (std::size_t i = 0; i < n; ++i)
      EXPECT_NEAR(paid[i], grads[i] + from.residual[i], 1e-6);
    EXPECT_EQ(run.gradient(), paid);
    EXPECT_TRUE(run.optimizer->step().applied);
    run.backward(grads);
    EXPECT_EQ(run.gradient(), grads);
    run.optimizer->step();
    EXPECT_FALSE(copy_of(run.optimizer->state()).has_array("worker_error"));
  });
}

// fp32 parameters were their own masters; residuals begin at 0.
TEST(LowBitState, LoadsAndReturnsStatesOfExactZero) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    test::run_ranks("local", 2, [&](comm::Communicator& comm) {
      ZeroOptions exact = few_bits(1, dtype, AfterSkip::kAuto);
      exact.wire = {};
      ZeroRun from(comm, two_groups(), test::adam_rule(), exact);
      train_with_overflows(comm, from, 0, 2);
      ZeroRun run(comm, two_groups(), test::adam_rule(),
                  few_bits(1, dtype, AfterSkip::kAuto));
      train_with_overflows(comm, run, 3, 5);
      kernels::convert(from.params.view(), run.params.view());
      run.optimizer->load_state_dict(copy_of(from.optimizer->state()));
      EXPECT_EQ(run.values(), from.values());
      EXPECT_EQ(run.masters(), from.masters());
      const StateDict state = copy_of(run.optimizer->state());
      for (const float e : test::floats_of(state.array("worker_error")))
        EXPECT_EQ(e, 0);
      train_with_overflows(comm, run, 3, 5);
      const auto masters = run.masters();
      from.optimizer->load_state_dict(copy_of(run.optimizer->state()));
      if (dtype == DType::kBFloat16) {
        EXPECT_EQ(from.masters(), masters);
      }
      EXPECT_EQ(from.optimizer->progress().steps, 4);
    });
}

TEST(LowBitState, SettingAndReadingMastersSetsReplicas) {
  test::run_ranks("local", 3, [&](comm::Communicator& comm) {
    ZeroRun run(comm, two_groups(), test::adam_rule(),
                few_bits(1, DType::kBFloat16, AfterSkip::kAuto));
    train_with_overflows(comm, run, 0, 2);
    const auto values = test::normal(1500, 77);
    run.optimizer->whole_values().set_parameter("first", values);
    EXPECT_EQ(run.optimizer->whole_values().parameter("first"), values);
    const auto rounded =
        test::floats_of(test::rounded(values, DType::kBFloat16).view());
    const auto replicas = run.values();
    EXPECT_TRUE(std::equal(rounded.begin(), rounded.end(), replicas.begin()));
    const auto all = test::normal(run.layout.size(), 78);
    run.optimizer->set_masters(all);
    EXPECT_EQ(run.masters(), all);
    EXPECT_EQ(run.values(),
              test::floats_of(test::rounded(all, DType::kBFloat16).view()));
  });
}

}  // namespace
}  // namespace thinwire::zero::low_bit_ways_test
