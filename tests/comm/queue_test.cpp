// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "support/errors.h"
#include "support/ranks.h"

namespace thinwire::comm::queue_test {
namespace {

using std::chrono::milliseconds;
using test::expect_error;

// (group): collectives that are under way while the caller goes on.
class QueuedCollectives : public ::testing::TestWithParam<test::Group> {};
class QueuedCollectivesOfTwo : public ::testing::TestWithParam<test::Group> {};

TEST_P(QueuedCollectives, ManyCompleteAtOnce) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    std::vector<std::vector<float>> data;
    std::vector<Work> works;
    for (std::size_t k = 0; k < 50; ++k)
      data.emplace_back(17 * k, static_cast<float>(k));
    for (auto& values : data) works.push_back(comm.queue_all_reduce(values));
    for (const Work& work : works) work.wait();
    for (std::size_t k = 0; k < data.size(); ++k) {
      const float want =
          static_cast<float>(k) * static_cast<float>(comm.size());
      EXPECT_EQ(data[k], std::vector<float>(17 * k, want)) << k;
      EXPECT_TRUE(works[k].done());
    }
  });
}

// Each one uses what the one before it has made.
TEST_P(QueuedCollectives, RunInTheOrderInWhichTheyWereQueued) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    const auto ranks = static_cast<std::size_t>(comm.size());
    constexpr std::size_t kEach = 33;
    std::vector<float> sum(kEach, 1.0f);
    std::vector<float> gathered(kEach * ranks);
    std::vector<float> exchanged(kEach * ranks);
    std::vector<float> piece(kEach);
    const Work first = comm.queue_all_reduce(sum);
    const Work second = comm.queue_all_gather(sum, gathered);
    const Work third = comm.queue_all_to_all(gathered, exchanged);
    const Work fourth = comm.queue_reduce_scatter(exchanged, piece);
    const Work last = comm.queue_broadcast(piece, comm.size() - 1);
    last.wait();
    for (const Work& work : {first, second, third, fourth})
      EXPECT_TRUE(work.done());
    const float w = static_cast<float>(comm.size());
    EXPECT_EQ(piece, std::vector<float>(kEach, w * w));
  });
}

TEST_P(QueuedCollectives, ProceedWhileTheCallerComputes) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    std::vector<float> data(4097, 1.0f);
    const Work work = comm.queue_all_reduce(data);
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!work.done() && std::chrono::steady_clock::now() < end)
      std::this_thread::yield();  // never waits
    ASSERT_TRUE(work.done());
    EXPECT_EQ(data.back(), static_cast<float>(comm.size()));
  });
}

TEST_P(QueuedCollectivesOfTwo, StayPendingAfterAWaitThatTimesOut) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    std::vector<float> data(7, 1.0f);
    const auto signal = comm.split(0);  // holds the others back
    if (comm.rank() > 0) signal->barrier();
    const Work work = comm.queue_all_reduce(data);
    if (comm.rank() == 0) {
      expect_error(ErrorCode::kCommFailure, {"all_reduce", "10 ms"},
                   [&] { work.wait(milliseconds(10)); });
      EXPECT_FALSE(work.done());
      signal->barrier();
    }
    work.wait(milliseconds::max());
    EXPECT_EQ(data[0], static_cast<float>(comm.size()));
  });
}

TEST_P(QueuedCollectives, AreCompletedByDestruction) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    std::vector<float> data(4097, 1.0f);
    {
      const auto group = comm.split(0);
      for (int k = 0; k < 3; ++k)
        static_cast<void>(group->queue_all_reduce(data));
    }
    const auto w = static_cast<float>(comm.size());
    EXPECT_EQ(data, std::vector<float>(4097, w * w * w));
  });
}

TEST_P(QueuedCollectives, ADefaultWorkIsDone) {
  const Work work;
  EXPECT_TRUE(work.done());
  work.wait();
  work.wait(milliseconds(0));
}

INSTANTIATE_TEST_SUITE_P(All, QueuedCollectives,
                         ::testing::ValuesIn(test::groups()),
                         ::testing::PrintToStringParamName());
// A job of one rank has nothing to wait for.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(QueuedCollectivesOfTwo);
INSTANTIATE_TEST_SUITE_P(All, QueuedCollectivesOfTwo,
                         ::testing::ValuesIn(test::groups(2)),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace thinwire::comm::queue_test
