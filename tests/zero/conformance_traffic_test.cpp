// SPDX-License-Identifier: Apache-2.0
// Items of docs/conformance.md about what is sent, and what of it is used.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "support/sanitizers.h"
#include "zero/support.h"

namespace thinwire::zero::conformance_traffic_test {
namespace {

using test::unscaled;
using test::ZeroRun;

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

}  // namespace
}  // namespace thinwire::zero::conformance_traffic_test
