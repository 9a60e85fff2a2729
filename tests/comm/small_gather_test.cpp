// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "support/hosts.h"
#include "support/ranks.h"

namespace thinwire::comm::small_gather_test {
namespace {

// What rank r gives: r elements more or less, some none.
std::vector<std::size_t> uneven_counts(int ranks, std::size_t n) {
  std::vector<std::size_t> counts;
  for (int r = 0; r < ranks; ++r)
    counts.push_back(r % 4 == 2 ? 0 : n + static_cast<std::size_t>(r) % 5);
  return counts;
}

std::int32_t element(int rank, std::size_t i) {
  return rank * 1000 + static_cast<std::int32_t>(i);
}

void gathers(Communicator& comm, const std::vector<std::size_t>& counts) {
  std::vector<std::int32_t> want;
  for (std::size_t r = 0; r < counts.size(); ++r)
    for (std::size_t i = 0; i < counts[r]; ++i)
      want.push_back(element(static_cast<int>(r), i));
  std::vector<std::int32_t> own;
  for (std::size_t i = 0; i < counts[static_cast<std::size_t>(comm.rank())];
       ++i)
    own.push_back(element(comm.rank(), i));
  std::vector<std::int32_t> all(want.size(), -1);
  comm.all_gather(own, all, counts);
  EXPECT_EQ(all, want);
}

std::uint64_t log2_up(int ranks) {
  std::uint64_t steps = 0;
  for (int reach = 1; reach < ranks; reach *= 2) ++steps;
  return steps;
}

TEST(SmallGather, EqualsDirectMessages) {
  for (int ranks = 9; ranks <= 17; ++ranks) {
    test::run_ranks("local", ranks, [&](Communicator& comm) {
      for (const std::size_t n : {0, 1, 7, 33})
        gathers(comm, uneven_counts(ranks, n));
      gathers(comm,
              std::vector<std::size_t>(static_cast<std::size_t>(ranks), 0));
    });
  }
}

TEST(SmallGather, SendsOneMessagePerStepAndTheSameBytes) {
  for (const int ranks : {8, 9, 16, 17}) {
    test::run_ranks("local", ranks, [&](Communicator& comm) {
      const double own = comm.rank();
      std::vector<double> all(static_cast<std::size_t>(ranks));
      comm.all_gather(std::span(&own, 1), all);
      for (int r = 0; r < ranks; ++r)
        EXPECT_EQ(all[static_cast<std::size_t>(r)], r);
      const auto others = static_cast<std::uint64_t>(ranks - 1);
      EXPECT_EQ(comm.counters().bytes_sent, 8 * others);
      EXPECT_EQ(comm.counters().messages, ranks == 8 ? others : log2_up(ranks));
    });
  }
}

TEST(SmallGather, LargerGathersAreDirect) {
  constexpr int kRanks = 9;
  test::run_ranks("local", kRanks, [](Communicator& comm) {
    const std::size_t limit = (64 << 10) / 4 / kRanks;
    gathers(comm, std::vector<std::size_t>(kRanks, limit));
    EXPECT_EQ(comm.counters().messages, 4u);
    gathers(comm, std::vector<std::size_t>(kRanks, limit + 1));
    EXPECT_EQ(comm.counters().messages, 4u + (kRanks - 1));
  });
}

TEST(SmallGather, SmallAllReducesAreDirect) {
  constexpr int kRanks = 9;
  test::run_ranks("local", kRanks, [](Communicator& comm) {
    std::vector<float> data(2 * kRanks, 1.0f);
    comm.all_reduce(data);
    EXPECT_EQ(data, std::vector<float>(2 * kRanks, 9.0f));
    EXPECT_EQ(comm.counters().messages, 2u * (kRanks - 1));
  });
}

// Few ranks and few bytes: one exchange, also by host.
TEST(SmallGather, SmallHierarchicalGathersAreDirect) {
  test::run_ranks("local", 4, [](Communicator& comm) {
    const auto grouped =
        comm.by_host(test::hosts_of(4, 2, test::Placing::kBlocks, comm.rank()));
    gathers(*grouped, std::vector<std::size_t>(4, 100));
    EXPECT_EQ(grouped->counters().messages, 3u);
    EXPECT_EQ(grouped->counters().bytes_between_hosts, 2 * 400u);
    gathers(*grouped, std::vector<std::size_t>(4, 5000));
    // To the other host; then, to the other rank here, both hosts' pieces.
    EXPECT_EQ(grouped->counters().messages, 3u + 1 + 2);
    EXPECT_EQ(grouped->counters().bytes_between_hosts, 2 * 400u + 20000);
  });
}

}  // namespace
}  // namespace thinwire::comm::small_gather_test
