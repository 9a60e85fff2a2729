// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/run.h"

#include <gtest/gtest.h>

#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/failure.h"
#include "support/environment.h"
#include "support/errors.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/comm/local.h"

namespace thinwire::comm {
namespace {

struct Ended {
  std::vector<int> codes;
  std::string text;  // what the ranks wrote, in their order
};

// run() on every rank of a local group.
Ended run_all(int world_size, const std::function<int(Communicator&)>& body) {
  auto group = make_local_group(world_size);
  Ended ended;
  ended.codes.resize(group.size());
  std::vector<std::ostringstream> errors(group.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < group.size(); ++rank)
      threads.emplace_back([&, rank] {
        ended.codes[rank] = run(std::move(group[rank]), body, &errors[rank]);
      });
  }
  for (const auto& of_rank : errors) ended.text += of_rank.str();
  return ended;
}

TEST(Run, ReturnsWhatTheBodyReturns) {
  const Ended ended = run_all(3, [](Communicator& comm) {
    comm.barrier();
    return comm.rank() == 1 ? 7 : 0;
  });
  EXPECT_EQ(ended.codes, (std::vector{0, 7, 0}));
  EXPECT_EQ(ended.text, "");
}

TEST(Run, OnlyTheRankThatFailedSaysSo) {
  const Ended ended = run_all(3, [](Communicator& comm) {
    comm.barrier();
    if (comm.rank() == 1) throw std::runtime_error("disk full");
    comm.barrier();
    return 0;
  });
  EXPECT_EQ(ended.codes, (std::vector{1, 1, 1}));
  EXPECT_EQ(ended.text, "rank 1: disk full\n");
}

TEST(Run, TheOthersLearnTheCause) {
  std::string seen;
  run_all(2, [&](Communicator& comm) {
    if (comm.rank() == 1) throw std::runtime_error("disk full");
    try {
      comm.barrier();
    } catch (const Error& error) {
      seen = error.what();
      throw;
    }
    return 0;
  });
  EXPECT_EQ(seen, "barrier: rank 1 gave up: disk full");
}

TEST(Run, OnlyTheFirstRankSaysWhatAllFound) {
  const Ended ended = run_all(3, [](Communicator& comm) -> int {
    require_same(comm, "options", std::to_string(comm.rank()));
    return 0;
  });
  EXPECT_EQ(ended.codes, (std::vector{1, 1, 1}));
  const std::string first = "options must be the same on all ranks";
  EXPECT_NE(ended.text.find(first), std::string::npos) << ended.text;
  EXPECT_EQ(ended.text.find(first), ended.text.rfind(first)) << ended.text;
}

TEST(Run, LeavesAStackOut) {
  const Ended ended = run_all(1, [](Communicator&) -> int {
    throw std::runtime_error(
        "bad shape\nException raised from check at /x.cpp:3 (most recent "
        "call first):\nframe #0: f + 0x10\n");
  });
  EXPECT_EQ(ended.text, "error: bad shape\n");
}

TEST(Run, WhatIsNoExceptionOfTheLibraryEndsTheSameWay) {
  const Ended ended = run_all(2, [](Communicator& comm) -> int {
    if (comm.rank() == 0) throw 5;
    comm.barrier();
    return 0;
  });
  EXPECT_EQ(ended.codes, (std::vector{1, 1}));
  EXPECT_EQ(ended.text, "rank 0: an exception that is no std::exception\n");
}

TEST(Run, TakesABodyThatReturnsNothing) {
  std::ostringstream errors;
  int ranks = 0;
  EXPECT_EQ(run([&](Communicator& comm) { ranks = comm.size(); }, &errors), 0);
  EXPECT_EQ(ranks, 1);
  EXPECT_EQ(run([](Communicator&) { throw std::runtime_error("no"); }, &errors),
            1);
  EXPECT_EQ(errors.str(), "error: no\n");
}

TEST(Run, SaysWhyItCannotStart) {
  const test::ScopedVariable comm("THINWIRE_COMM", "carrier pigeon");
  std::ostringstream errors;
  EXPECT_EQ(run([](Communicator&) {}, &errors), 1);
  EXPECT_EQ(errors.str(),
            "error: THINWIRE_COMM must be one of local, mpi, got \"carrier "
            "pigeon\"\n");
  test::expect_error(ErrorCode::kInvalidArgument, {"comm", "null"}, [] {
    (void)run(std::unique_ptr<Communicator>(), [](Communicator&) { return 0; });
  });
}

TEST(Failure, KnowsWhichMessagesPassAnothersOn) {
  EXPECT_TRUE(failure::tells_of_a_peer("all_reduce: rank 12 gave up: no"));
  EXPECT_TRUE(failure::tells_of_a_peer("rank 0: rank 1 gave up: no"));
  EXPECT_FALSE(failure::tells_of_a_peer("all_reduce: this rank gave up: no"));
  EXPECT_FALSE(failure::tells_of_a_peer("all_reduce: rank 12 has left"));
  EXPECT_FALSE(failure::tells_of_a_peer("my rank gave up: no"));
  EXPECT_FALSE(failure::tells_of_a_peer("rank 1"));
}

}  // namespace
}  // namespace thinwire::comm
