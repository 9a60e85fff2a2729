// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/root.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <stdexcept>

#include "checkpoint/commit/scenarios.h"
#include "checkpoint/read/verified_file.h"
#include "support/errors.h"

namespace thinwire::checkpoint::root_test {
namespace {

using test::Dummy;
using test::dummy_contents;
using test::expect_error;
using test::expect_invalid;
using test::FaultFileSystem;
using test::kRun;
using test::on_ranks;
using test::write_dummy;
using Names = std::vector<std::string>;

const std::string kRoot = test::kScenarioRoot;

std::int64_t newest(FaultFileSystem& disk) {
  return test::newest_tag(disk.of_rank(0), kRoot);
}

Names names(FaultFileSystem& disk) { return disk.of_rank(0).list(kRoot); }

TEST(Root, FilesOfAllRanksHaveTheirHashes) {
  for (const int world : {1, 2, 3, 4}) {
    FaultFileSystem disk(world);
    on_ranks(world, [&](comm::Communicator& comm) {
      FileSystem& files = disk.of_rank(comm.rank());
      const Root::Committed done =
          test::save_dummy(files, comm, kRoot + "/", {.step = 7, .tag = 3});
      EXPECT_EQ(done.path, "/runs/a/step-0000000007");
      EXPECT_EQ(done.save_index, 1);
      EXPECT_GT(done.bytes, 4096U * static_cast<unsigned>(world));
    });
    EXPECT_EQ(newest(disk), 3);
    EXPECT_EQ(names(disk), (Names{".lock", "latest", "step-0000000007"}));
    EXPECT_EQ(read_text(disk.of_rank(0), kRoot + "/latest", false, 100),
              "step-0000000007\n");
  }
}

TEST(Root, FillsInWhoWroteItAndWhen) {
  FaultFileSystem disk(1);
  on_ranks(1, [&](comm::Communicator& comm) {
    Root::Options options = test::quick_options();
    options.clock = [] {
      return std::chrono::system_clock::from_time_t(1'700'000'000);
    };
    options.durable = false;
    Root root(disk.of_rank(0), comm, kRoot, kRun, options);
    write_dummy(root, comm, {.step = 1, .tag = 1});
  });
  const auto found = find_checkpoints(disk.of_rank(0), kRoot);
  ASSERT_EQ(found.size(), 1U);
  const Manifest& manifest = found[0].manifest;
  EXPECT_EQ(manifest.written, "2023-11-14T22:13:20Z");
  EXPECT_EQ(manifest.run, kRun);
  EXPECT_EQ(manifest.id.size(), 32U);
  EXPECT_FALSE(manifest.durable);
  EXPECT_FALSE(manifest.library.empty());
  const Names log = disk.log();
  EXPECT_TRUE(std::none_of(log.begin(), log.end(), [](const auto& line) {
    return line.find("sync") == 0;
  }));
}

// After a restart of another run, too.
TEST(Root, OrdersCheckpointsByTheirIndexWhateverTheClockSays) {
  FaultFileSystem disk(2);
  on_ranks(2, [&](comm::Communicator& comm) {
    std::time_t now = 2'000'000'000;
    Root::Options options = test::quick_options();
    options.clock = [&] {
      return std::chrono::system_clock::from_time_t(now -= 1'000'000);
    };
    Root root(disk.of_rank(comm.rank()), comm, kRoot, kRun, options);
    for (const Dummy& one : {Dummy{20, 1}, Dummy{30, 2}, Dummy{10, 3}})
      write_dummy(root, comm, one);
  });
  EXPECT_EQ(newest(disk), 3);
  disk.of_rank(0).remove_file(kRoot + "/latest");
  const auto found = find_checkpoints(disk.of_rank(0), kRoot);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].name, "step-0000000010");
  EXPECT_EQ(found[1].name, "step-0000000030");
  EXPECT_EQ(found[2].name, "step-0000000020");
  on_ranks(1, [&](comm::Communicator& comm) {
    const auto done =
        test::save_dummy(disk.of_rank(0), comm, kRoot, {5, 4}, test::kOtherRun);
    EXPECT_EQ(done.save_index, 4);
  });
  EXPECT_EQ(newest(disk), 4);
}

// A directory and a file that happen to have the name, and another run's.
TEST(Root, ForeignEntryWithTheFinalNameIsRenamedAndKept) {
  FaultFileSystem disk(1);
  FileSystem& files = disk.of_rank(0);
  on_ranks(1, [&](comm::Communicator& comm) {
    test::save_dummy(files, comm, kRoot, {1, 1}, test::kOtherRun);
    files.make_directory(kRoot + "/step-0000000002");
    files.create(kRoot + "/step-0000000003")->close();
    Root root = test::open_root(disk, comm);
    for (const std::int64_t step : {1, 2, 3})
      write_dummy(root, comm, {step, 10 + step});
  });
  on_ranks(1, [&](comm::Communicator& comm) {
    const Root root = test::open_root(disk, comm);
  });
  const Names all = names(disk);
  EXPECT_EQ(all.size(), 2U + 6U);
  EXPECT_EQ(std::count_if(all.begin(), all.end(),
                          [](const auto& name) {
                            return name.find(".replaced-aaaaaaaa") !=
                                   std::string::npos;
                          }),
            3);
  EXPECT_EQ(newest(disk), 13);
}

TEST(Root, ARankThatSeesTheDirectoryLateWaits) {
  FaultFileSystem disk(3);
  disk.hide(2, "probe", 3);
  on_ranks(3, [&](comm::Communicator& comm) {
    test::save_dummy(disk.of_rank(comm.rank()), comm, kRoot, {1, 1});
  });
  EXPECT_EQ(newest(disk), 1);
}

TEST(Root, ADirectoryThatIsNotSharedIsNamedWithBothHosts) {
  FaultFileSystem disk(3);
  FaultFileSystem elsewhere(3);
  on_ranks(3, [&](comm::Communicator& comm) {
    FaultFileSystem& files = comm.rank() == 2 ? elsewhere : disk;
    Root root(files.of_rank(comm.rank()), comm, kRoot, kRun,
              test::quick_options());
    expect_error(ErrorCode::kUnavailable,
                 {"rank 2: /runs/a is not shared: rank 2 on host ",
                  "does not see the file that rank 0 on host ", " wrote"},
                 [&] {
                   write_dummy(root, comm, {1, 1});
                 });
  });
  EXPECT_EQ(names(disk), (Names{".lock"}));
}

TEST(Root, FullDiskIsReportedBeforeAnythingIsWritten) {
  FaultFileSystem disk(2);
  disk.set_free_bytes(16 << 20);
  on_ranks(2, [&](comm::Communicator& comm) {
    Root root = test::open_root(disk, comm);
    expect_error(ErrorCode::kUnavailable,
                 {"rank 0: /runs/a: a checkpoint needs ",
                  "(2 % and 16 MiB), 16777216 are free", "room for k + 1"},
                 [&] {
                   write_dummy(root, comm, {1, 1});
                 });
    comm.barrier();
    disk.set_free_bytes(17 << 20);
    comm.barrier();
    write_dummy(root, comm, {1, 2});
  });
  EXPECT_EQ(newest(disk), 2);
}

TEST(Root, AttachmentsHaveDistinctNames) {
  FaultFileSystem disk(2);
  on_ranks(2, [&](comm::Communicator& comm) {
    Root root = test::open_root(disk, comm);
    using All = std::vector<Attachment>;
    for (const auto& [attachments, what] :
         {std::pair(All{{"../x"}}, "got ../x"),
          {All{{""}}, "letters"},
          {All{{".x"}}, "got .x"},
          {All{{std::string(129, 'x')}}, "at most 128"},
          {All{{"manifest.json"}}, "names of other files"},
          {All{{"model.safetensors"}}, "names of other files"},
          {All{{"x"}, {"x"}}, "names of other files"},
          {All{{"x", std::string((16 << 20) + 1, 'x')}}, "at most 16 MiB"}}) {
      Root::Contents contents = dummy_contents(comm, {1, 1});
      if (comm.rank() == 0) contents.attachments = attachments;
      expect_invalid({"rank 0: attachments[].", what},
                     [&] { root.write(std::move(contents)); });
    }
    write_dummy(root, comm, {1, 1});
  });
  EXPECT_EQ(newest(disk), 1);
}

TEST(Root, TellsProgressOnRankZero) {
  FaultFileSystem disk(3);
  on_ranks(3, [&](comm::Communicator& comm) {
    Root root = test::open_root(disk, comm);
    Root::Contents contents = dummy_contents(comm, {1, 1});
    std::vector<std::uint64_t> told;
    std::uint64_t all = 0;
    contents.progress = [&](std::uint64_t bytes, std::uint64_t total) {
      told.push_back(bytes);
      all = total;
    };
    const Root::Committed done = root.write(std::move(contents));
    if (comm.rank() != 0) {
      EXPECT_TRUE(told.empty());
      return;
    }
    EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
    EXPECT_EQ(told.size(), 4U);
    EXPECT_EQ(told.back(), done.bytes);
    EXPECT_EQ(all, done.bytes);
  });
}

TEST(Root, SettingsAreChecked) {
  FaultFileSystem disk(1);
  on_ranks(1, [&](comm::Communicator& comm) {
    expect_invalid({"run must be 32 hex", "xyz"}, [&] {
      const Root root(disk.of_rank(0), comm, kRoot, "xyz",
                      test::quick_options());
    });
    Root root = test::open_root(disk, comm);
    expect_invalid({"step must be >= 0, got -1"}, [&] {
      write_dummy(root, comm, {-1, 1});
    });
    expect_invalid({"keep_last", "got -1"},
                   [&] { root.retain({.keep_last = -1}, ""); });
    expect_invalid({"keep_every", "got -2"},
                   [&] { root.retain({.keep_every = -2}, ""); });
  });
}

using Body = std::function<void(comm::Communicator&)>;

class FailingRank : public testing::Test {
 protected:
  FailingRank() {
    on_ranks(3, [&](comm::Communicator& comm) {
      test::save_dummy(disk_.of_rank(comm.rank()), comm, kRoot, {1, 1});
    });
  }

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

  FaultFileSystem disk_{3};
};

TEST_F(FailingRank, ThatThrowsIsNamedOnAllAndTrainingContinues) {
  on_ranks(3, [&](comm::Communicator& comm) {
    Root root = test::open_root(disk_, comm);
    expect_error(ErrorCode::kFailedPrecondition, {"rank 1: no such tensor"},
                 [&] {
                   write(root, comm, [](comm::Communicator&) {
                     throw std::runtime_error("no such tensor");
                   });
                 });
    comm.barrier();
    if (comm.rank() == 0) {
      EXPECT_EQ(newest(disk_), 1);
      EXPECT_EQ(names(disk_).size(), 3U)
          << "something of the failed save is left";
    }
    comm.barrier();
    write_dummy(root, comm, {2, 3});
  });
  EXPECT_EQ(newest(disk_), 3);
}

TEST_F(FailingRank, ThatIsGoneBeforeASaveLeavesNothing) {
  EXPECT_THROW(on_ranks(3,
                        [&](comm::Communicator& comm) {
                          Root root = test::open_root(disk_, comm);
                          if (comm.rank() == 1)
                            throw std::runtime_error("killed");
                          expect_error(ErrorCode::kCommFailure, {}, [&] {
                            write_dummy(root, comm, {2, 2});
                          });
                        }),
               std::runtime_error);
  EXPECT_EQ(newest(disk_), 1);
}

// The others may still be writing, so the next start tidies.
TEST_F(FailingRank, ThatIsGoneInTheMiddleCommitsNothing) {
  EXPECT_THROW(on_ranks(3,
                        [&](comm::Communicator& comm) {
                          Root root = test::open_root(disk_, comm);
                          write(root, comm, [](comm::Communicator& own) {
                            own.give_up("killed");
                          });
                        }),
               Error);
  EXPECT_EQ(newest(disk_), 1);
  EXPECT_EQ(names(disk_).size(), 4U);
  on_ranks(3, [&](comm::Communicator& comm) {
    const Root root = test::open_root(disk_, comm);
  });
  EXPECT_EQ(names(disk_).size(), 3U);
}

TEST(Everywhere, TheLowestRanksErrorIsThrownOnAll) {
  for (const int world : {1, 2, 3, 4}) {
    on_ranks(world, [&](comm::Communicator& comm) {
      const int last = world - 1;
      const std::string rank = std::to_string(last);
      expect_error(ErrorCode::kUnavailable,
                   {"rank " + rank + ": no disk on " + rank}, [&] {
                     everywhere(comm, [&] {
                       if (comm.rank() == last)
                         throw Error(ErrorCode::kUnavailable,
                                     "no disk on " + rank);
                     });
                   });
      expect_error(ErrorCode::kFailedPrecondition, {"rank 0: 0"}, [&] {
        everywhere(comm, [&] {
          throw std::runtime_error(std::to_string(comm.rank()));
        });
      });
      int calls = 0;
      everywhere(comm, [&] { ++calls; });
      EXPECT_EQ(calls, 1);
    });
  }
}

TEST(Everywhere, TextsOfAnyLengthReachAllRanks) {
  for (const int world : {1, 2, 3}) {
    for (const std::size_t size : {0, 1, 1025}) {
      on_ranks(world, [&](comm::Communicator& comm) {
        const auto text = [&](int rank) {
          return std::string(size * static_cast<std::size_t>(rank + 1),
                             static_cast<char>('a' + rank));
        };
        EXPECT_EQ(broadcast_text(comm, text(comm.rank())), text(0));
        const auto all = gather_texts(comm, text(comm.rank()));
        ASSERT_EQ(all.size(), static_cast<std::size_t>(world));
        for (int rank = 0; rank < world; ++rank)
          EXPECT_EQ(all[static_cast<std::size_t>(rank)], text(rank));
      });
    }
  }
}

TEST(RandomId, IsNew) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) ids.insert(random_id());
  EXPECT_EQ(ids.size(), 100U);
}

}  // namespace
}  // namespace thinwire::checkpoint::root_test
