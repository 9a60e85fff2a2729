// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/endings.h"
#include "support/errors.h"
#include "support/hosts.h"
#include "thinwire/comm/local.h"

namespace thinwire::comm::local_failure_test {
namespace {

using std::chrono::milliseconds;
using test::end_soon;
using test::expect_error;
using test::expect_soon;
using test::kFailure;
using test::kLong;
using test::lose_one;
using Clock = std::chrono::steady_clock;

TEST(LocalFailure, ARankThatThrowsIsNamedWithItsReason) {
  lose_one(4, [](Communicator& comm) {
    std::vector<float> data(33);
    comm.all_reduce(data);
    if (comm.rank() == 2) throw std::runtime_error("disk full");
    expect_error(kFailure, {"all_reduce", "gave up", "disk full"},
                 [&] { comm.all_reduce(data); });
  });
}

TEST(LocalFailure, TheExceptionOfTheRankThatThrewFirstIsRethrown) {
  try {
    run_local_ranks(
        3,
        [](Communicator& comm) {
          if (comm.rank() == 1) throw std::out_of_range("token 70000");
          comm.barrier();
        },
        kLong);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::out_of_range& error) {
    EXPECT_STREQ(error.what(), "token 70000");
  }
}

// In groups of a host's ranks, and of one rank of each host.
TEST(LocalFailure, InHierarchicalGroupsRanksKeepTheirNumbersInErrors) {
  std::atomic<int> waiting = 3;
  run_local_ranks(
      4,
      [&](Communicator& flat) {
        const auto comm = flat.by_host(test::hosts_of(
            4, 2, test::Placing::kRoundRobin, flat.rank()));  // {0 2} {1 3}
        const HostGroups groups = split_by_host(*comm);
        if (flat.rank() == 3) {
          while (waiting > 0) std::this_thread::sleep_for(milliseconds(1));
          return;
        }
        Communicator& of_three =
            flat.rank() == 1 ? *groups.inside : *groups.between;
        if (flat.rank() != 0)
          expect_error(kFailure, {"timed out waiting for rank 3"},
                       [&] { of_three.barrier(); });
        --waiting;
      },
      {.timeout = std::chrono::seconds(1)});
}

TEST(LocalFailure, ARankThatNeverComesIsNamedAfterTheTimeOut) {
  std::atomic<int> failed = 0;
  run_local_ranks(3,
                  [&](Communicator& comm) {
                    if (comm.rank() == 2) {
                      while (failed < 2)
                        std::this_thread::sleep_for(milliseconds(1));
                      return;
                    }
                    std::vector<float> data(4097);
                    const auto begin = Clock::now();
                    expect_error(kFailure,
                                 {"all_reduce", "timed out", "rank 2"},
                                 [&] { comm.all_reduce(data); });
                    EXPECT_GE(Clock::now() - begin, milliseconds(300));
                    ++failed;
                  },
                  {.timeout = milliseconds(300)});
}

TEST(LocalFailure, DifferentSizesFailAndNameBothSizes) {
  end_soon(2, [](Communicator& comm) {
    std::vector<float> data(comm.rank() == 0 ? 10 : 7);
    // Whichever rank sees it first tells the other, with its reason.
    expect_error(kFailure, {"broadcast", "40", "28"},
                 [&] { comm.broadcast(data, 0); });
  });
}

TEST(LocalFailure, DifferentCollectivesFailAndNameBoth) {
  end_soon(2, [](Communicator& comm) {
    std::vector<float> data(2);
    std::vector<float> all(4);
    expect_error(kFailure, {"all_reduce", "all_gather"}, [&] {
      if (comm.rank() == 0)
        comm.all_reduce(data);
      else
        comm.all_gather(data, all);
    });
  });
}

TEST(LocalFailure, AnUnexpectedMessageFailsItsSender) {
  end_soon(2, [](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    std::vector<float> input(2);
    std::vector<float> output(2);
    std::vector<std::size_t> sent = {1, 1};
    std::vector<std::size_t> received = {1, 1};
    if (rank == 0) received = {1, 0};
    output.resize(rank == 0 ? 1 : 2);
    expect_error(kFailure, {"all_to_all", "4 bytes", "0 were expected"},
                 [&] { comm.all_to_all(input, sent, output, received); });
  });
}

TEST(LocalFailure, DifferentCountsFailAndNameBothSizes) {
  end_soon(3, [](Communicator& comm) {
    std::vector<float> input(9);
    std::vector<float> output(3);
    std::vector<std::size_t> counts = {3, 3, 3};
    if (comm.rank() == 1) counts = {4, 3, 2};
    expect_error(kFailure, {"reduce_scatter", "bytes", "were expected"},
                 [&] { comm.reduce_scatter(input, output, counts); });
  });
}

TEST(LocalFailure, ARankThatHasLeftIsNamed) {
  end_soon(3, [](Communicator& comm) {
    comm.barrier();
    if (comm.rank() == 1) return;
    std::vector<float> data(33);
    expect_error(kFailure, {"all_reduce", "rank"},
                 [&] { comm.all_reduce(data); });
    expect_error(kFailure, {"already failed"}, [&] { comm.barrier(); });
  });
}

TEST(LocalFailure, ARankMayLeaveAfterACompletedCollective) {
  for (int round = 0; round < 50; ++round) {
    run_local_ranks(
        4,
        [](Communicator& comm) {
          std::vector<float> data(33, 1.0f);
          comm.all_reduce(data);
          comm.broadcast(data, 3);
        },
        kLong);
  }
}

TEST(LocalFailure, EveryQueuedAndEveryLaterCollectiveFails) {
  run_local_ranks(
      2,
      [](Communicator& comm) {
        if (comm.rank() == 1) return;
        std::vector<std::vector<float>> data(5, std::vector<float>(7));
        const Work first = comm.queue_all_reduce(data[0]);
        std::vector<Work> works;
        try {
          for (auto& values : data)
            works.push_back(comm.queue_broadcast(values, 1));
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), kFailure);  // it had failed by then
        }
        expect_error(kFailure, {"all_reduce", "rank 1 has left"},
                     [&] { first.wait(); });
        expect_error(kFailure, {"all_reduce", "rank 1 has left"},
                     [&] { first.wait(); });
        for (const Work& work : works) {
          expect_error(kFailure,
                       {"broadcast", "already failed", "all_reduce", "rank 1"},
                       [&] { work.wait(); });
        }
        expect_error(kFailure, {"barrier", "already failed", "rank 1"},
                     [&] { comm.barrier(); });
        expect_error(kFailure, {"split", "already failed"},
                     [&] { static_cast<void>(comm.split(0)); });
      },
      kLong);
}

TEST(LocalFailure, AQueuedCallRunsInOrderAndIfItThrowsLaterWorkFails) {
  run_local_ranks(
      2,
      [](Communicator& comm) {
        std::vector<float> sum{1};
        const Work first = comm.queue_all_reduce(sum);
        float seen = 0;
        comm.queue_call([&] { seen = sum[0]; }).wait();
        EXPECT_EQ(seen, 2);
        first.wait();
        const Work call =
            comm.queue_call([] { throw std::runtime_error("no memory"); });
        expect_error(kFailure, {"call", "no memory"}, [&] { call.wait(); });
        expect_error(kFailure, {"already failed", "no memory"},
                     [&] { comm.all_reduce(sum); });
      },
      kLong);
}

TEST(LocalFailure, ACommunicatorDestroyedByAnExceptionNotifiesItsPeers) {
  expect_soon([] {
    auto group = make_local_group(2, kLong);
    std::thread peer([own = std::move(group[1])]() mutable {
      try {
        const auto comm = std::move(own);
        throw std::runtime_error("out of memory");
      } catch (const std::runtime_error&) {
        own.reset();
      }
    });
    std::vector<float> data(33);
    expect_error(kFailure, {"rank 1 gave up", "destroyed by an exception"},
                 [&] { group[0]->all_reduce(data); });
    peer.join();
  });
}

TEST(LocalFailure, AnExceptionDoesNotWaitForPendingCollectives) {
  expect_soon([] {
    auto group = make_local_group(2, kLong);
    std::vector<std::vector<float>> data(4, std::vector<float>(33));
    std::vector<Work> works;
    try {
      const auto comm = std::move(group[0]);
      for (auto& values : data) works.push_back(comm->queue_all_reduce(values));
      throw std::runtime_error("out of memory");
    } catch (const std::runtime_error&) {
      for (const Work& work : works) {
        expect_error(kFailure, {"all_reduce", "destroyed by an exception"},
                     [&] { work.wait(); });
      }
    }
  });
}

TEST(LocalFailure, DestructionEndsWithinTheTimeOutOfAHungPeer) {
  auto group = make_local_group(2, {.timeout = milliseconds(300)});
  std::vector<std::vector<float>> data(9, std::vector<float>(33));
  const auto begin = Clock::now();
  for (auto& values : data)
    static_cast<void>(group[0]->queue_all_reduce(values));
  group[0].reset();
  EXPECT_GE(Clock::now() - begin, milliseconds(300));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
}

TEST(LocalFailure, FailureOfAGroupReachesRanksThatWaitForItsMembers) {
  lose_one(4, [](Communicator& comm) {
    const auto half = comm.split(comm.rank() / 2);
    if (comm.rank() == 3) throw std::runtime_error("disk full");
    std::vector<float> data(33);
    half->all_reduce(data);
    expect_error(kFailure, {"all_reduce", "gave up"},
                 [&] { comm.all_reduce(data); });
  });
}

TEST(LocalFailure, GivingUpReachesRanksThatWaitInASplitGroup) {
  end_soon(4, [](Communicator& comm) {
    const auto half = comm.split(comm.rank() / 2);
    const auto pair = half->split(0);
    std::vector<float> data(33);
    if (comm.rank() == 3) comm.give_up("disk full");
    if (comm.rank() < 2) return pair->all_reduce(data);
    expect_error(kFailure, {"all_reduce", "disk full"},
                 [&] { pair->all_reduce(data); });
  });
}

TEST(LocalFailure, InterruptFailsPendingAndLaterCollectives) {
  expect_soon([] {
    auto group = make_local_group(2, kLong);
    std::vector<float> data(33);
    const Work work = group[0]->queue_all_reduce(data);
    std::thread other([] {
      std::this_thread::sleep_for(milliseconds(50));
      interrupt("received SIGTERM");
    });
    expect_error(kFailure,
                 {"all_reduce", "interrupted", "received SIGTERM", "rank 1"},
                 [&] { work.wait(); });
    EXPECT_STREQ(interrupted(), "received SIGTERM");
    expect_error(kFailure, {"received SIGTERM"}, [&] { group[0]->barrier(); });
    expect_error(kFailure, {"barrier"}, [&] { group[1]->barrier(); });
    other.join();
    interrupt(nullptr);
    EXPECT_EQ(interrupted(), nullptr);
  });
}

}  // namespace
}  // namespace thinwire::comm::local_failure_test
