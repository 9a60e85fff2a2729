// SPDX-License-Identifier: Apache-2.0
// Checkpoints that cannot be read, and files that one host sees later than
// another, or that go while they are read.
#include "checkpoint/found.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "checkpoint/commit/scenarios.h"
#include "support/errors.h"

namespace thinwire::checkpoint::await_files_test {
namespace {

using std::chrono::milliseconds;
using test::expect_error;
using test::FaultFileSystem;
using test::on_ranks;

constexpr int kRanks = 3;
const std::string kRoot = test::kScenarioRoot;

Found save(FaultFileSystem& disk) {
  on_ranks(kRanks, [&](comm::Communicator& comm) {
    test::save_dummy(disk.of_rank(comm.rank()), comm, kRoot,
                     {.step = 1, .tag = 1});
  });
  auto all = find_checkpoints(disk.of_rank(0), kRoot);
  return {kRoot + "/" + all.at(0).name, std::move(all.at(0).manifest), false};
}

std::string last_file(const Found& found) {
  return found.path + "/" + found.manifest.files.back().name;
}

void cut(FaultFileSystem& disk, const std::string& path, std::uint64_t bytes) {
  FileSystem& files = disk.of_rank(0);
  files.remove_file(path);
  files.create(path)->write_at(0, std::vector<std::byte>(bytes));
}

// Returns the paths that one rank finds.
std::vector<std::string> candidates(FaultFileSystem& disk,
                                    const std::string& path) {
  std::vector<std::string> paths;
  on_ranks(1, [&](comm::Communicator& comm) {
    std::vector<std::string> notes;
    for (const Found& found :
         find_candidates(comm, disk.of_rank(0), path, What::kAll, notes))
      paths.push_back(found.path);
    EXPECT_EQ(notes, std::vector<std::string>{});
  });
  return paths;
}

// None is left out because of an error that says nothing about the files.
TEST(FindCandidates, NeverTakesAnotherOneInsteadOfOneThatCannotBeRead) {
  FaultFileSystem disk(1);
  on_ranks(1, [&](comm::Communicator& comm) {
    for (const std::int64_t step : {1, 2, 3})
      test::save_dummy(disk.of_rank(0), comm, kRoot, {step, step});
  });
  const std::vector<std::string> all = {kRoot + "/step-0000000003",
                                        kRoot + "/step-0000000002",
                                        kRoot + "/step-0000000001"};
  const std::vector<std::function<void()>> looks = {
      [&] { EXPECT_EQ(candidates(disk, kRoot).size(), 3u); },
      [&] { static_cast<void>(complete_one(disk.of_rank(0), kRoot)); }};
  for (const std::function<void()>& look : looks) {
    disk.set_fault({});  // counts from here on
    look();
    const std::size_t operations = disk.log().size();
    EXPECT_GT(operations, 20u);
    for (const int number : {EIO, ESTALE, EACCES})
      for (std::size_t k = 1; k <= operations; ++k) {
        disk.set_fault({.operation = k, .number = number});
        expect_error(ErrorCode::kUnavailable, {kRoot, std::strerror(number)},
                     look);
      }
  }
}

TEST(FindCandidates, DoesNotEnterTheDirectoryOfFsck) {
  FaultFileSystem disk(1);
  on_ranks(1, [&](comm::Communicator& comm) {
    for (const std::int64_t step : {1, 2})
      test::save_dummy(disk.of_rank(0), comm, kRoot, {step, step});
  });
  disk.of_rank(0).rename(kRoot + "/step-0000000002", kRoot + "/lost+found");
  EXPECT_EQ(candidates(disk, kRoot),
            (std::vector<std::string>{kRoot + "/step-0000000001"}));
}

TEST(FindCandidates, PathsMayHaveLineBreaks) {
  const std::string broken = kRoot + "\n of b";
  FaultFileSystem disk(1);
  on_ranks(1, [&](comm::Communicator& comm) {
    for (const std::string& root : {kRoot, broken, kRoot + "/step\n1"})
      test::save_dummy(disk.of_rank(0), comm, root, {1, 1});
  });
  EXPECT_EQ(candidates(disk, broken),
            (std::vector<std::string>{broken + "/step-0000000001"}));
  const std::string one = kRoot + "/step\n1/step-0000000001";
  EXPECT_EQ(candidates(disk, one), std::vector<std::string>{one});
  test::expect_invalid({"path must be a path without NUL"}, [&] {
    static_cast<void>(candidates(disk, kRoot + std::string(1, '\0')));
  });
}

TEST(AwaitFiles, DoesNotWaitForExistingFiles) {
  FaultFileSystem disk(kRanks);
  const Found found = save(disk);
  on_ranks(kRanks, [&](comm::Communicator& comm) {
    await_files(comm, disk.of_rank(comm.rank()), found);
  });
  EXPECT_EQ(disk.waited(), milliseconds(0));
}

TEST(AwaitFiles, LooksAgainForWhatShowsLate) {
  FaultFileSystem disk(kRanks);
  const Found found = save(disk);
  disk.hide(2, found.manifest.files.back().name, 5);
  on_ranks(kRanks, [&](comm::Communicator& comm) {
    await_files(comm, disk.of_rank(comm.rank()), found);
  });
  EXPECT_EQ(disk.waited(), milliseconds(1 + 2 + 4 + 8 + 16));
}

TEST(AwaitFiles, LooksAgainAtWhatIsShort) {
  FaultFileSystem disk(kRanks);
  FaultFileSystem elsewhere(kRanks);
  const Found found = save(disk);
  static_cast<void>(save(elsewhere));
  // Directories have other nonces, but one name in the end.
  const std::string path = last_file(found);
  cut(elsewhere, path, 10);
  int waits = 0;
  elsewhere.set_waiting([&](int rank) {
    EXPECT_EQ(rank, 1);
    if (++waits == 3) cut(elsewhere, path, found.manifest.files.back().bytes);
  });
  on_ranks(kRanks, [&](comm::Communicator& comm) {
    FaultFileSystem& files = comm.rank() == 1 ? elsewhere : disk;
    await_files(comm, files.of_rank(comm.rank()), found);
  });
  EXPECT_EQ(waits, 3);
}

TEST(AwaitFiles, GivesUpAfterItsPatienceAndNamesRankAndFile) {
  FaultFileSystem disk(kRanks);
  FaultFileSystem elsewhere(kRanks);
  const Found found = save(disk);
  static_cast<void>(save(elsewhere));
  cut(elsewhere, last_file(found), 10);
  on_ranks(kRanks, [&](comm::Communicator& comm) {
    FaultFileSystem& files = comm.rank() == 2 ? elsewhere : disk;
    expect_error(ErrorCode::kUnavailable,
                 {last_file(found), "rank 2 on host", "sees 10 of",
                  "it was removed while it was being opened (check keep_last)",
                  "not shared"},
                 [&] { await_files(comm, files.of_rank(comm.rank()), found); });
  });
  EXPECT_GE(elsewhere.waited(), milliseconds(30'000));
  EXPECT_LT(elsewhere.waited(), milliseconds(32'000));
  EXPECT_EQ(disk.waited(), milliseconds(0));
}

// Nobody waits for what is nowhere.
TEST(AwaitFiles, FileThatRank0MissesIsMissing) {
  FaultFileSystem disk(kRanks);
  const Found found = save(disk);
  const auto refused = [&](std::string_view what) {
    on_ranks(kRanks, [&](comm::Communicator& comm) {
      expect_error(
          ErrorCode::kCorruptCheckpoint, {last_file(found), what},
          [&] { await_files(comm, disk.of_rank(comm.rank()), found); });
    });
  };
  cut(disk, last_file(found), 10);
  refused("it has 10 bytes, the manifest says");
  disk.of_rank(0).remove_file(last_file(found));
  refused("it is missing");
  EXPECT_EQ(disk.waited(), milliseconds(0));
}

TEST(RequireStillThere, SaysThatAFileHasGone) {
  FaultFileSystem disk(kRanks);
  const Found found = save(disk);
  const Error error(ErrorCode::kUnavailable, "no such file");
  EXPECT_NO_THROW(require_still_there(disk.of_rank(0), found, error));
  disk.of_rank(0).remove_file(last_file(found));
  expect_error(ErrorCode::kUnavailable,
               {last_file(found),
                "it was removed while it was being opened (check keep_last)",
                "no such file"},
               [&] { require_still_there(disk.of_rank(0), found, error); });
}

}  // namespace
}  // namespace thinwire::checkpoint::await_files_test
