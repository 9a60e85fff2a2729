// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/run.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/failure.h"
#include "support/counting_group.h"
#include "support/environment.h"
#include "support/errors.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/comm/local.h"
#include "thinwire/comm/registry.h"

namespace thinwire::comm::run_test {
namespace {

struct Ended {
  std::vector<int> codes;
  std::string text;  // what the ranks wrote, in their order
};

using Body = std::function<int(Communicator&)>;

// run() on every rank of a local group.
Ended run_all(int world_size, const Body& body) {
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

// run() on two ranks whose transport is as simple as a user's may be.
Ended run_without_groups(const Body& body) {
  test::CountingGroup group(2, /*ranks_per_host=*/1, /*splits=*/false);
  Ended ended{.codes = {-1, -1}, .text = {}};
  std::array<std::ostringstream, 2> errors;
  group.run([&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    ended.codes[rank] = run(comm, body, &errors[rank]);
  });
  for (const auto& of_rank : errors) ended.text += of_rank.str();
  return ended;
}

TEST(Run, ReturnsTheResultOfTheBody) {
  const Ended ended = run_all(3, [](Communicator& comm) {
    comm.barrier();
    return comm.rank() == 1 ? 7 : 0;
  });
  EXPECT_EQ(ended.codes, (std::vector{0, 7, 0}));
  EXPECT_EQ(ended.text, "");
}

TEST(Run, OnlyTheFailedRankReports) {
  const auto body = [](Communicator& comm) {
    comm.barrier();
    if (comm.rank() == 1) throw std::runtime_error("disk full");
    comm.barrier();
    return 0;
  };
  for (const Ended& ended : {run_all(3, body), run_without_groups(body)}) {
    EXPECT_EQ(ended.codes, std::vector(ended.codes.size(), 1));
    EXPECT_EQ(ended.text, "rank 1: disk full\n");
  }
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

TEST(Run, OnlyRankZeroReportsACommonFailure) {
  const Ended ended = run_all(3, [](Communicator& comm) -> int {
    require_same(comm, "options", std::to_string(comm.rank()));
    return 0;
  });
  EXPECT_EQ(ended.codes, (std::vector{1, 1, 1}));
  const std::string first = "options must be the same on all ranks";
  EXPECT_NE(ended.text.find(first), std::string::npos) << ended.text;
  EXPECT_EQ(ended.text.find(first), ended.text.rfind(first)) << ended.text;
}

TEST(Run, OmitsTheStack) {
  const Ended ended = run_all(1, [](Communicator&) -> int {
    throw std::runtime_error(
        "bad shape\nException raised from check at /x.cpp:3 (most recent "
        "call first):\nframe #0: f + 0x10\n");
  });
  EXPECT_EQ(ended.text, "error: bad shape\n");
}

TEST(Run, OtherExceptionsEndTheRunInTheSameWay) {
  const Ended ended = run_all(2, [](Communicator& comm) -> int {
    if (comm.rank() == 0) throw 5;
    comm.barrier();
    return 0;
  });
  EXPECT_EQ(ended.codes, (std::vector{1, 1}));
  EXPECT_EQ(ended.text, "rank 0: an exception that is no std::exception\n");
}

TEST(Run, AcceptsABodyWithoutAResult) {
  std::ostringstream errors;
  int ranks = 0;
  EXPECT_EQ(run([&](Communicator& comm) { ranks = comm.size(); }, &errors), 0);
  EXPECT_EQ(ranks, 1);
  EXPECT_EQ(run([](Communicator&) { throw std::runtime_error("no"); }, &errors),
            1);
  EXPECT_EQ(errors.str(), "error: no\n");
}

// Each form of run(), with a body of either kind.
TEST(Run, AcceptsTheCallersCommunicatorWithEitherBody) {
  int calls = 0;
  const auto nothing = [&](Communicator& comm) { calls += comm.size(); };
  const auto code = [](Communicator& comm) { return 6 + comm.size(); };
  const auto alone = [] { return std::move(make_local_group(1)[0]); };
  const std::unique_ptr<Communicator> kept = alone();
  EXPECT_EQ(run(alone(), nothing), 0);
  EXPECT_EQ(run(*kept, nothing), 0);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(run(alone(), code), 7);
  EXPECT_EQ(run(*kept, code), 7);
  EXPECT_EQ(run(code), 7);
}

TEST(Run, WorksOnATransportWithoutGroups) {
  const Ended ended = run_without_groups([](Communicator& comm) {
    test::expect_error(ErrorCode::kUnavailable, {"no groups"},
                       [&] { (void)comm.split(0); });
    std::vector<float> sum{1.0f};
    comm.all_reduce(sum);
    return static_cast<int>(sum[0]);
  });
  EXPECT_EQ(ended.codes, (std::vector{2, 2}));
  EXPECT_EQ(ended.text, "");
}

TEST(Run, WithoutGroupsEveryRankReportsACommonFailure) {
  const Ended ended = run_without_groups([](Communicator& comm) -> int {
    require_same(comm, "options", std::to_string(comm.rank()));
    return 0;
  });
  EXPECT_EQ(ended.codes, (std::vector{1, 1}));
  for (const char* rank : {"rank 0: options must", "rank 1: options must"})
    EXPECT_NE(ended.text.find(rank), std::string::npos) << ended.text;
}

TEST(Run, SaysWhyItCannotStart) {
  const test::ScopedVariable comm("THINWIRE_COMM", "carrier pigeon");
  std::ostringstream errors;
  EXPECT_EQ(run([](Communicator&) {}, &errors), 1);
  EXPECT_EQ(errors.str(),
            "error: THINWIRE_COMM must be one of local, mpi, got \"carrier "
            "pigeon\"\n");
  test::expect_invalid({"comm", "null"}, [] {
    (void)run(std::unique_ptr<Communicator>(), [](Communicator&) { return 0; });
  });
}

TEST(Failure, RecognizesMessagesAboutAnotherRanksFailure) {
  EXPECT_TRUE(failure::tells_of_a_peer("all_reduce: rank 12 gave up: no"));
  EXPECT_TRUE(failure::tells_of_a_peer("rank 0: rank 1 gave up: no"));
  EXPECT_FALSE(failure::tells_of_a_peer("all_reduce: this rank gave up: no"));
  EXPECT_FALSE(failure::tells_of_a_peer("all_reduce: rank 12 has left"));
  EXPECT_FALSE(failure::tells_of_a_peer("my rank gave up: no"));
  EXPECT_FALSE(failure::tells_of_a_peer("rank 1"));
}

TEST(Failure, FindsTheRanksThatATextWaitedFor) {
  const std::vector<int> peers{1, 12};
  const Operation operation{.name = "barrier", .sequence = 1, .deadline = {}};
  EXPECT_EQ(failure::waited_for(failure::timed_out(operation, peers)), peers);
  EXPECT_EQ(failure::waited_for("x: timed out waiting for rank 3 (in 2 s)"),
            std::vector{3});
  EXPECT_TRUE(failure::waited_for("barrier: rank 3 has left").empty());
  EXPECT_TRUE(failure::waited_for("MPI: timed out waiting for the other ranks")
                  .empty());
}

// ---- backends, and what the environment chooses

TEST(Registry, LocalIsAlwaysAvailable) {
  const Backend& local = backends().front();
  EXPECT_EQ(local.name, "local");
  EXPECT_EQ(local.why_unavailable(), "");
  EXPECT_NE(local.version(), "");
  const auto comm = local.make({});
  EXPECT_EQ(comm->size(), 1);
  EXPECT_EQ(comm->backend(), "local");
}

TEST(Registry, EveryBackendHasAVersionOrAReason) {
  for (const Backend& backend : backends())
    EXPECT_NE(backend.version().empty(), backend.why_unavailable().empty())
        << backend.name;
}

TEST(FromEnvironment, IsALocalGroupOfOneWithoutALauncher) {
  const test::ScopedVariable backend("THINWIRE_COMM", nullptr);
  const test::ScopedVariable timeout("THINWIRE_TIMEOUT", "5s");
  const auto comm = from_environment();
  EXPECT_EQ(comm->backend(), "local");
  EXPECT_EQ(comm->size(), 1);
  EXPECT_EQ(comm->timeout(), std::chrono::seconds(5));
}

TEST(FromEnvironment, RefusesAnUnknownBackendAndListsTheKnownOnes) {
  const test::ScopedVariable backend("THINWIRE_COMM", "carrier_pigeon");
  test::expect_invalid({"THINWIRE_COMM", "local, mpi", "carrier_pigeon"},
                       [] { const auto comm = from_environment(); });
}

TEST(FromEnvironment, RefusesToRunLaunchedRanksSeparately) {
  const test::ScopedVariable backend("THINWIRE_COMM", "local");
  const test::ScopedVariable launched("OMPI_COMM_WORLD_SIZE", "3");
  test::expect_error(ErrorCode::kUnavailable, {"3 ranks", "local", "alone"},
                     [] { const auto comm = from_environment(); });
}

}  // namespace
}  // namespace thinwire::comm::run_test
