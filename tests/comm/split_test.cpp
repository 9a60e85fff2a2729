// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "support/ranks.h"

namespace thinwire::comm::split_test {
namespace {

// (group)
class Split : public ::testing::TestWithParam<test::Group> {};

// The world ranks of a group, in its order.
std::vector<std::int32_t> members_of(Communicator& group, int world_rank) {
  const std::int32_t own = world_rank;
  std::vector<std::int32_t> members(static_cast<std::size_t>(group.size()));
  group.all_gather(ConstView(&own, 1, DType::kInt32), members);
  return members;
}

TEST_P(Split, PutsRanksOfOneColorTogetherInTheirOrder) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    const auto half = comm.split(comm.rank() % 2);
    ASSERT_NE(half, nullptr);
    std::vector<std::int32_t> want;
    for (int rank = comm.rank() % 2; rank < comm.size(); rank += 2)
      want.push_back(rank);
    EXPECT_EQ(members_of(*half, comm.rank()), want);
    EXPECT_EQ(want[static_cast<std::size_t>(half->rank())], comm.rank());
    EXPECT_EQ(half->backend(), comm.backend());
    EXPECT_EQ(half->timeout(), comm.timeout());
  });
}

TEST_P(Split, OrdersRanksByKeyAndThenByRank) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    const auto reversed = comm.split(7, -comm.rank());
    std::vector<std::int32_t> want;
    for (int rank = comm.size() - 1; rank >= 0; --rank) want.push_back(rank);
    EXPECT_EQ(members_of(*reversed, comm.rank()), want);

    // Odd ranks first, each kind in the order of ranks.
    const auto odd_first = comm.split(7, comm.rank() % 2 == 1 ? 0 : 1);
    want.clear();
    for (int rank = 1; rank < comm.size(); rank += 2) want.push_back(rank);
    for (int rank = 0; rank < comm.size(); rank += 2) want.push_back(rank);
    EXPECT_EQ(members_of(*odd_first, comm.rank()), want);
  });
}

TEST_P(Split, ReturnsNullForANegativeColor) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    const auto rest = comm.split(comm.rank() == 0 ? -1 : 0);
    EXPECT_EQ(rest == nullptr, comm.rank() == 0);
    if (rest) {
      EXPECT_EQ(rest->size(), comm.size() - 1);
      rest->barrier();
    }
    comm.barrier();
  });
}

TEST_P(Split, GroupsOfOneRankNeedNoPeers) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    const auto alone = comm.split(comm.rank());
    ASSERT_EQ(alone->size(), 1);
    std::vector<float> data(33, 2.0f);
    alone->all_reduce(data);
    EXPECT_EQ(data, std::vector<float>(33, 2.0f));
    EXPECT_EQ(alone->counters().bytes_sent, 0u);
  });
}

TEST_P(Split, AGroupCanBeSplitAgain) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    const auto half = comm.split(comm.rank() / 2);
    const auto quarter = half->split(half->rank());
    EXPECT_EQ(members_of(*quarter, comm.rank()),
              std::vector<std::int32_t>{comm.rank()});
    EXPECT_LE(half->size(), 2);
  });
}

// Different groups of the same ranks, busy at the same time.
TEST_P(Split, GroupsDoNotDisturbEachOther) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    constexpr int kRounds = 20;
    const auto reversed = comm.split(0, -comm.rank());
    const auto half = comm.split(comm.rank() % 2);
    std::vector<std::vector<float>> data(3 * kRounds,
                                         std::vector<float>(33, 1.0f));
    std::vector<Work> works;
    for (std::size_t round = 0; round < kRounds; ++round) {
      works.push_back(comm.queue_all_reduce(data[3 * round]));
      works.push_back(reversed->queue_all_reduce(data[3 * round + 1]));
      works.push_back(half->queue_all_reduce(data[3 * round + 2]));
    }
    for (const Work& work : works) work.wait();
    for (std::size_t i = 0; i < data.size(); ++i) {
      const int ranks = i % 3 == 2 ? half->size() : comm.size();
      EXPECT_EQ(data[i], std::vector<float>(33, static_cast<float>(ranks)));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, Split, ::testing::ValuesIn(test::groups()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace thinwire::comm::split_test
