// SPDX-License-Identifier: Apache-2.0
// Files that one host sees later than another, or that go while they are read.
#include "checkpoint/found.h"

#include <gtest/gtest.h>

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

TEST(AwaitFiles, WaitsForNothingThatIsThere) {
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
TEST(AwaitFiles, WhatRank0MissesIsMissing) {
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
