// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <stdexcept>

#include "checkpoint/commit/scenarios.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace thinwire::checkpoint::failing_rank_test {
namespace {

using test::dummy_contents;
using test::expect_error;
using test::FaultFileSystem;
using Body = std::function<void(comm::Communicator&)>;

const std::string kRoot = test::kScenarioRoot;

class FailingRank : public testing::Test {
 protected:
  FailingRank() {
    on_ranks([&](comm::Communicator& comm) {
      test::save_dummy(disk_.of_rank(comm.rank()), comm, kRoot, {1, 1});
    });
  }

  static void on_ranks(const Body& body) { test::run_ranks("local", 3, body); }

  // Rank 1 does `instead` where its second tensor is read.
  static void write(Root& root, comm::Communicator& comm, const Body& instead) {
    Root::Contents contents = dummy_contents(comm, {2, 2});
    if (comm.rank() == 1) {
      contents.files[0].read = [&](std::size_t tensor, std::uint64_t,
                                   std::span<std::byte>) {
        if (tensor > 0) instead(comm);
      };
    }
    root.write(std::move(contents));
  }

  std::int64_t newest() {
    const test::LoadedDummy loaded = test::load_dummy(disk_.of_rank(0), kRoot);
    EXPECT_EQ(loaded.problem, "");
    return loaded.tag.value_or(-1);
  }
  std::size_t names() { return disk_.of_rank(0).list(kRoot).size(); }

  FaultFileSystem disk_{3};
};

TEST_F(FailingRank, ThatThrowsIsNamedOnAllAndTrainingGoesOn) {
  on_ranks([&](comm::Communicator& comm) {
    Root root = test::open_root(disk_, comm);
    expect_error(ErrorCode::kFailedPrecondition, {"rank 1: no such tensor"},
                 [&] {
                   write(root, comm, [](comm::Communicator&) {
                     throw std::runtime_error("no such tensor");
                   });
                 });
    comm.barrier();
    if (comm.rank() == 0) {
      EXPECT_EQ(newest(), 1);
      EXPECT_EQ(names(), 3U) << "something of the failed save is left";
    }
    comm.barrier();
    test::write_dummy(root, comm, {2, 3});
  });
  EXPECT_EQ(newest(), 3);
}

TEST_F(FailingRank, ThatIsGoneBeforeASaveLeavesNothing) {
  EXPECT_THROW(on_ranks([&](comm::Communicator& comm) {
                 Root root = test::open_root(disk_, comm);
                 if (comm.rank() == 1) throw std::runtime_error("killed");
                 expect_error(ErrorCode::kCommFailure, {}, [&] {
                   test::write_dummy(root, comm, {2, 2});
                 });
               }),
               std::runtime_error);
  EXPECT_EQ(newest(), 1);
}

// The others may still be writing, so the next start tidies.
TEST_F(FailingRank, ThatIsGoneInTheMiddleCommitsNothing) {
  EXPECT_THROW(on_ranks([&](comm::Communicator& comm) {
                 Root root = test::open_root(disk_, comm);
                 write(root, comm,
                       [](comm::Communicator& own) { own.give_up("killed"); });
               }),
               Error);
  EXPECT_EQ(newest(), 1);
  EXPECT_EQ(names(), 4U);
  on_ranks([&](comm::Communicator& comm) {
    const Root root = test::open_root(disk_, comm);
  });
  EXPECT_EQ(names(), 3U);
}

}  // namespace
}  // namespace thinwire::checkpoint::failing_rank_test
