// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "comm/values.h"
#include "support/ranks.h"

namespace thinwire::comm::collectives_test {
namespace {

using test::get;
using test::sample;

using Param = std::tuple<test::Group, std::size_t>;

std::string name_of(const ::testing::TestParamInfo<Param>& info) {
  const auto& [group, n] = info.param;
  return group.backend + std::to_string(group.world_size) + "_n" +
         std::to_string(n);
}

// (group, elements per rank), each for every dtype.
class Collectives : public ::testing::TestWithParam<Param> {
 protected:
  const test::Group group = std::get<0>(GetParam());
  const std::size_t n = std::get<1>(GetParam());
  const std::size_t ranks = static_cast<std::size_t>(group.world_size);

  void for_each_dtype(
      const std::function<void(Communicator&, DType)>& body) const {
    test::run_ranks(group, [&](Communicator& comm) {
      ASSERT_EQ(comm.size(), group.world_size);
      for (const DType dtype : test::kAllDTypes) {
        SCOPED_TRACE(to_string(dtype));
        body(comm, dtype);
      }
    });
  }

  // Rank r's counts when pieces differ: r, and every third one is empty.
  [[nodiscard]] std::size_t ragged(int from, int to) const {
    return (from + to) % 3 == 2 ? 0
                                : n + static_cast<std::size_t>(from + 2 * to);
  }
};

TEST_P(Collectives, AllGatherCollectsEveryRanksInput) {
  for_each_dtype([&](Communicator& comm, DType dtype) {
    const Buffer input = test::filled(
        dtype, n, [&](std::size_t i) { return sample(comm.rank(), i); });
    Buffer output(n * ranks, dtype);
    comm.all_gather(input.view(), output.view());
    for (int rank = 0; rank < comm.size(); ++rank)
      for (std::size_t i = 0; i < n; ++i)
        ASSERT_EQ(get(output.view(), static_cast<std::size_t>(rank) * n + i),
                  sample(rank, i))
            << "rank " << rank << " element " << i;
  });
}

TEST_P(Collectives, AllGatherInputMayBePartOfItsOutput) {
  test::run_ranks(group, [&](Communicator& comm) {
    std::vector<float> output(n * ranks, -1.0f);
    const View own =
        View(output).subview(static_cast<std::size_t>(comm.rank()) * n, n);
    for (std::size_t i = 0; i < n; ++i)
      test::set(own, i, sample(comm.rank(), i));
    comm.all_gather(own, output);
    for (std::size_t i = 0; i < output.size(); ++i)
      ASSERT_EQ(output[i], sample(static_cast<int>(i / n), i % n)) << i;
  });
}

TEST_P(Collectives, AllToAllSendsPieceRToRankR) {
  for_each_dtype([&](Communicator& comm, DType dtype) {
    const Buffer input = test::filled(dtype, n * ranks, [&](std::size_t i) {
      return sample(comm.rank(), i);
    });
    Buffer output(n * ranks, dtype);
    comm.all_to_all(input.view(), output.view());
    const std::size_t begin = n * static_cast<std::size_t>(comm.rank());
    for (int rank = 0; rank < comm.size(); ++rank)
      for (std::size_t i = 0; i < n; ++i)
        ASSERT_EQ(get(output.view(), static_cast<std::size_t>(rank) * n + i),
                  sample(rank, begin + i))
            << "from rank " << rank << " element " << i;
  });
}

TEST_P(Collectives, AllToAllTakesUnequalAndEmptyPieces) {
  for_each_dtype([&](Communicator& comm, DType dtype) {
    std::vector<std::size_t> sent;
    std::vector<std::size_t> received;
    for (int peer = 0; peer < comm.size(); ++peer) {
      sent.push_back(ragged(comm.rank(), peer));
      received.push_back(ragged(peer, comm.rank()));
    }
    Buffer input(std::accumulate(sent.begin(), sent.end(), std::size_t{0}),
                 dtype);
    std::size_t at = 0;
    for (int peer = 0; peer < comm.size(); ++peer)
      for (std::size_t i = 0; i < sent[static_cast<std::size_t>(peer)]; ++i)
        test::set(input.view(), at++, sample(comm.rank() + 3 * peer, i));
    Buffer output(
        std::accumulate(received.begin(), received.end(), std::size_t{0}),
        dtype);
    comm.all_to_all(input.view(), sent, output.view(), received);
    at = 0;
    for (int peer = 0; peer < comm.size(); ++peer)
      for (std::size_t i = 0; i < received[static_cast<std::size_t>(peer)]; ++i)
        ASSERT_EQ(get(output.view(), at++), sample(peer + 3 * comm.rank(), i))
            << "from rank " << peer << " element " << i;
  });
}

TEST_P(Collectives, BroadcastGivesEveryRankTheRootsValues) {
  for_each_dtype([&](Communicator& comm, DType dtype) {
    for (int root = 0; root < comm.size(); ++root) {
      Buffer data = test::filled(
          dtype, n, [&](std::size_t i) { return sample(comm.rank(), i); });
      comm.broadcast(data.view(), root);
      for (std::size_t i = 0; i < n; ++i)
        ASSERT_EQ(get(data.view(), i), sample(root, i))
            << "root " << root << " element " << i;
    }
  });
}

TEST_P(Collectives, CountersFollowTheFormulaOfEachCollective) {
  test::run_ranks(group, [&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    const std::size_t others = ranks - 1;
    std::uint64_t sent = 0;
    std::uint64_t calls = 0;
    const auto expect_next = [&](std::uint64_t bytes) {
      EXPECT_EQ(comm.counters().bytes_sent, sent += bytes);
      EXPECT_EQ(comm.counters().collectives, ++calls);
    };
    std::vector<float> one(n);
    std::vector<float> all(n * ranks);
    std::vector<float> other(n * ranks);
    comm.all_reduce(one);  // the first n % ranks pieces are longer by one
    const std::size_t own = n / ranks + (rank < n % ranks ? 1 : 0);
    expect_next(4 * (n - own + others * own));
    comm.reduce_scatter(all, one);
    expect_next(4 * n * others);
    comm.all_gather(one, all);
    expect_next(4 * n * others);
    comm.all_to_all(all, other);
    expect_next(4 * n * others);
    comm.broadcast(one, 0);
    expect_next(rank == 0 ? 4 * n * others : 0);
    comm.barrier();
    expect_next(0);
    const auto part = comm.split(0);
    expect_next(0);
    part->all_gather(one, all);
    EXPECT_EQ(part->counters().bytes_sent, 4 * n * others);
    EXPECT_EQ(comm.counters().bytes_sent, sent);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Collectives,
                         ::testing::Combine(::testing::ValuesIn(test::groups()),
                                            ::testing::Values(0, 1, 7, 31, 32,
                                                              33, 4097)),
                         name_of);

// (group)
class LongCollectives : public ::testing::TestWithParam<test::Group> {};

TEST_P(LongCollectives, MaxKeepsTheNanOfAnyRankAndOrdersInfinities) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  test::run_ranks(GetParam(), [&](Communicator& comm) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16,
                              DType::kBFloat16}) {
      for (int holder = 0; holder < comm.size(); ++holder) {
        const bool here = comm.rank() == holder;
        Buffer data(3, dtype);
        test::set(data.view(), 0, here ? kNan : 1.0f);
        test::set(data.view(), 1, here ? -1.0f : -kInfinity);
        test::set(data.view(), 2, here ? kInfinity : 5.0f);
        comm.all_reduce(data.view(), ReduceOp::kMax);
        EXPECT_TRUE(std::isnan(get(data.view(), 0))) << "rank " << holder;
        EXPECT_EQ(get(data.view(), 1), -1.0) << "rank " << holder;
        EXPECT_EQ(get(data.view(), 2), kInfinity) << "rank " << holder;
      }
    }
  });
}

TEST_P(LongCollectives, IntegerSumsWrapAround) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    std::vector<std::int32_t> data(5, std::numeric_limits<std::int32_t>::max());
    comm.all_reduce(data);
    const auto ranks = static_cast<std::uint32_t>(comm.size());
    const auto want = static_cast<std::int32_t>(ranks * 0x7fffffffu);
    EXPECT_EQ(data, std::vector<std::int32_t>(5, want));
  });
}

// All ranks are on one machine and read the same clock.
TEST_P(LongCollectives, BarrierWaitsForAllRanks) {
  const auto now = [] {
    return std::int64_t{
        std::chrono::steady_clock::now().time_since_epoch().count()};
  };
  test::run_ranks(GetParam(), [&](Communicator& comm) {
    for (int late = 0; late < comm.size(); ++late) {
      if (comm.rank() == late)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const std::int64_t came = now();
      comm.barrier();
      const std::int64_t went = now();
      std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()));
      comm.all_gather(ConstView(&came, 1, DType::kInt64), all);
      EXPECT_GE(went, *std::max_element(all.begin(), all.end()));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, LongCollectives,
                         ::testing::ValuesIn(test::groups()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace thinwire::comm::collectives_test
