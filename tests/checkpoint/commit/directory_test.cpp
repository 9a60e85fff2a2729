// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "checkpoint/commit/commit.h"
#include "checkpoint/commit/find_checkpoints.h"
#include "checkpoint/commit/scenarios.h"
#include "checkpoint/read/verified_file.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/kept_log.h"
#include "support/nobody.h"

namespace thinwire::checkpoint::directory_test {
namespace {

using test::Dummy;
using test::expect_error;
using test::FaultFileSystem;
using test::Folder;
using test::kRun;
using Names = std::vector<std::string>;

const std::string kRoot = test::kScenarioRoot;
const std::string kOurs = std::string(8, 'a') + "01234567";
const std::string kOthers = std::string(8, 'b') + "01234567";

Names names(FaultFileSystem& disk) {
  Names all = disk.of_rank(0).list(kRoot);
  std::erase(all, ".lock");
  std::erase(all, "latest");
  return all;
}

void start(FaultFileSystem& disk, const std::string& run = kRun) {
  test::on_ranks(1, [&](comm::Communicator& comm) {
    const Root root(disk.of_rank(0), comm, kRoot, run, test::quick_options());
  });
}

void save(FaultFileSystem& disk, const Dummy& dummy,
          const std::string& run = kRun) {
  test::on_ranks(1, [&](comm::Communicator& comm) {
    test::save_dummy(disk.of_rank(0), comm, kRoot, dummy, run);
  });
}

TEST(Names, TellWhatADirectoryIs) {
  EXPECT_EQ(step_name(7), "step-0000000007");
  EXPECT_EQ(step_name(98765432101), "step-98765432101");
  const std::string step = step_name(7);
  EXPECT_EQ(kind_of(step), NameKind::kFinal);
  EXPECT_EQ(kind_of(step_name(98765432101)), NameKind::kFinal);
  EXPECT_EQ(kind_of(step + ".partial-" + kOurs), NameKind::kPartial);
  EXPECT_EQ(kind_of(step + ".replaced-" + kOurs), NameKind::kReplaced);
  EXPECT_EQ(kind_of(".deleting-" + kOurs), NameKind::kDeleting);
  for (const std::string& name :
       Names{"", "step-7", "step-000000000x", "backup", "step-" + kOurs,
             step + ".partial-" + kOurs.substr(1), step + ".partial-xyz",
             step + ".deleting-" + kOurs, "x.partial-" + kOurs}) {
    EXPECT_EQ(kind_of(name), NameKind::kForeign) << name;
  }
  EXPECT_TRUE(is_of_run(step + ".partial-" + kOurs, kRun));
  EXPECT_FALSE(is_of_run(step + ".partial-" + kOthers, kRun));
}

TEST(Leftovers, OfUnfinishedSavesAreRemovedWhoeverLeftThem) {
  const std::string partial = "step-0000000002.partial-";
  const std::string damaged = partial + std::string(16, 'b');
  for (const bool has_lock : {true, false}) {
    FaultFileSystem disk(1);
    FileSystem& files = disk.of_rank(0);
    save(disk, {1, 1});
    for (const std::string& name :
         {partial + kOurs, partial + kOthers, ".deleting-" + kOurs,
          ".deleting-" + kOthers, damaged}) {
      files.make_directory(kRoot + "/" + name);
      files.create(kRoot + "/" + name + "/model.safetensors")->close();
    }
    files.create(kRoot + "/" + damaged + "/manifest.json")->close();
    const test::KeptLog log;
    if (has_lock)
      start(disk);
    else
      tidy({.files = files, .path = kRoot, .run = kRun}, false);
    Names kept{"step-0000000001"};
    Names theirs{damaged};
    if (!has_lock)
      theirs = {".deleting-" + kOthers, partial + kOthers, damaged};
    for (const std::string& name : theirs)
      EXPECT_EQ(log.count(name), 1u) << name;
    kept.insert(kept.end(), theirs.begin(), theirs.end());
    std::ranges::sort(kept);
    EXPECT_EQ(names(disk), kept);
  }
}

TEST(Leftovers, ThatAreCompleteGetTheirName) {
  for (const std::string& nonce : {kOurs, kOthers}) {
    FaultFileSystem disk(1);
    FileSystem& files = disk.of_rank(0);
    save(disk, {1, 1});
    save(disk, {2, 2});
    files.rename(kRoot + "/step-0000000002",
                 kRoot + "/step-0000000002.partial-" + nonce);
    files.remove_file(kRoot + "/latest");
    start(disk);
    EXPECT_EQ(names(disk), (Names{"step-0000000001", "step-0000000002"}));
    EXPECT_TRUE(files.exists(kRoot + "/latest"));
    EXPECT_EQ(test::load_dummy(files, kRoot).tag, 2);
  }
}

// A complete one stays under the name it has, whoever starts next.
TEST(Leftovers, DoNotReplaceAnotherRunsCheckpoint) {
  FaultFileSystem disk(1);
  save(disk, {1, 1});
  save(disk, {1, 2}, test::kOtherRun);
  for (const std::string& run : {kRun, test::kOtherRun, kRun}) {
    start(disk, run);
    const Names all = names(disk);
    ASSERT_EQ(all.size(), 2U);
    EXPECT_EQ(all[0], "step-0000000001");
    EXPECT_EQ(all[1].find("step-0000000001.replaced-bbbbbbbb"), 0U);
    EXPECT_EQ(test::load_dummy(disk.of_rank(0), kRoot).tag, 2);
    EXPECT_EQ(find_checkpoints(disk.of_rank(0), kRoot)[1].manifest.run, kRun);
  }
}

TEST(FindCheckpoints, NamesDecideNothing) {
  FaultFileSystem disk(1);
  FileSystem& files = disk.of_rank(0);
  save(disk, {1, 1});
  save(disk, {2, 2});
  files.rename(kRoot + "/step-0000000001", kRoot + "/best");
  files.make_directory(kRoot + "/logs");
  files.make_directory(kRoot + "/step-0000000009");
  const auto found = find_checkpoints(files, kRoot);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].name, "step-0000000002");
  EXPECT_EQ(found[1].name, "best");
  EXPECT_TRUE(found[1].complete);
  EXPECT_EQ(found[2].name, "step-0000000009");
  EXPECT_FALSE(found[2].complete);
  EXPECT_NE(found[2].problem.find("manifest.json: it is missing"),
            std::string::npos);
}

// Newest first, as find_checkpoints() gives them.
std::vector<FoundCheckpoint> found_at(const std::vector<std::int64_t>& steps) {
  std::vector<FoundCheckpoint> found;
  for (const std::int64_t step : steps) {
    FoundCheckpoint one{.name = step_name(step), .complete = true};
    one.manifest.run = kRun;
    one.manifest.step = step;
    one.manifest.save_index = step;
    found.push_back(std::move(one));
  }
  return found;
}

TEST(Retention, KeepsTheNewestAndEverySoManiethStep) {
  const auto found = found_at({50, 40, 30, 20, 10, 0});
  const auto go = [&](const Retention& which, const std::string& loaded) {
    Names all;
    for (std::string& name : superfluous(found, kRun, which, {loaded, -1}))
      all.push_back(name.substr(name.size() - 2));
    return all;
  };
  EXPECT_EQ(go({.keep_last = 0}, ""), Names{});
  EXPECT_EQ(go({.keep_last = 6}, ""), Names{});
  EXPECT_EQ(go({.keep_last = 2}, ""), (Names{"30", "20", "10", "00"}));
  EXPECT_EQ(go({.keep_last = 1, .keep_every = 20}, ""), (Names{"30", "10"}));
  EXPECT_EQ(go({.keep_last = 1}, step_name(40)),
            (Names{"30", "20", "10", "00"}));
  EXPECT_EQ(go({.keep_last = 1}, step_name(30)),
            (Names{"40", "30", "20", "10", "00"}));
}

// A run that went on from step 20 has left 40 and 30, which were there then.
TEST(Retention, CountsWhatWasSavedSinceTheLoad) {
  auto found = found_at({50, 40, 30, 20, 10});
  const LoadedFrom loaded{step_name(20), found[1].manifest.save_index};
  EXPECT_EQ(superfluous(found, kRun, {.keep_last = 1}, loaded),
            (Names{step_name(40), step_name(30), step_name(10)}));
}

TEST(Retention, LeavesAloneWhatIsNotThisRuns) {
  auto found = found_at({50, 40, 30, 20, 10});
  found[1].manifest.run = test::kOtherRun;
  found[2].complete = false;
  found[3].name = "best";
  EXPECT_EQ(superfluous(found, kRun, {.keep_last = 1}, {}),
            (Names{step_name(10)}));
  EXPECT_EQ(superfluous(found, kRun, {.keep_last = 2}, {}), Names{});
}

TEST(Retention, KeepsTheNewestWhoseParametersAreFinite) {
  auto found = found_at({50, 40, 30, 20, 10});
  found[0].manifest.finite = found[1].manifest.finite = false;
  EXPECT_EQ(superfluous(found, kRun, {.keep_last = 1}, {}),
            (Names{step_name(40), step_name(20), step_name(10)}));
  EXPECT_EQ(superfluous(found, kRun, {.keep_last = 3}, {}),
            (Names{step_name(20), step_name(10)}));
}

// ---- on a disk

void save_in(const std::string& root, const Dummy& dummy) {
  test::on_ranks(3, [&](comm::Communicator& comm) {
    test::save_dummy(posix_file_system(), comm, root, dummy);
  });
}

std::int64_t newest(const std::string& root) {
  return test::newest_tag(posix_file_system(), root);
}

TEST(RootOnDisk, SavesSavesAgainAndRetains) {
  const Folder folder;
  const std::string root = folder.in("out/checkpoints");
  save_in(root, {1, 1});
  save_in(root, {1, 2});
  EXPECT_EQ(newest(root), 2);
  save_in(root, {2, 3});
  test::on_ranks(3, [&](comm::Communicator& comm) {
    Root directory(posix_file_system(), comm, root, test::kRun,
                   test::quick_options());
    directory.retain({.keep_last = 1}, "");
  });
  EXPECT_EQ(newest(root), 3);
  EXPECT_EQ(posix_file_system().list(root),
            (std::vector<std::string>{".lock", "latest", "step-0000000002"}));
}

TEST(RootOnDisk, MayBeALink) {
  const Folder folder;
  std::filesystem::create_directory(folder.in("scratch"));
  std::filesystem::create_symlink("scratch", folder.in("out"));
  save_in(folder.in("out"), {1, 1});
  EXPECT_EQ(newest(folder.in("scratch")), 1);
  EXPECT_EQ(newest(folder.in("out")), 1);
}

TEST(RootOnDisk, AFileThatIsALinkIsNone) {
  const Folder folder;
  save_in(folder.path(), {1, 1});
  save_in(folder.path(), {2, 2});
  const std::string directory = folder.in("step-0000000002/");
  for (const std::string& name :
       std::vector<std::string>{"model.safetensors", "manifest.json"}) {
    std::filesystem::rename(directory + name, directory + "elsewhere");
    std::filesystem::create_symlink("elsewhere", directory + name);
    EXPECT_EQ(newest(folder.path()), 1) << name;
    const auto found = find_checkpoints(posix_file_system(), folder.path());
    ASSERT_EQ(found.size(), 2U);
    EXPECT_FALSE(found[1].complete);
    EXPECT_NE(found[1].problem.find(name + ": it is not a regular file"),
              std::string::npos);
    std::filesystem::remove(directory + name);
    std::filesystem::rename(directory + "elsewhere", directory + name);
  }
  EXPECT_EQ(newest(folder.path()), 2);
}

TEST(RootOnDisk, AFileInTheWayOfRootIsNamed) {
  const Folder folder;
  std::ofstream(folder.in("out")) << "mine";
  for (const std::string& root : {folder.in("out"), folder.in("out/below")}) {
    expect_error(ErrorCode::kUnavailable, {"rank 0: ", root}, [&] {
      save_in(root, {1, 1});
    });
  }
  EXPECT_EQ(std::filesystem::file_size(folder.in("out")), 4U);
}

TEST(RootOnDisk, ADirectoryThatMayNotBeWrittenIsNamed) {
  const Folder folder;
  std::filesystem::create_directory(folder.in("out"));
  std::filesystem::permissions(folder.path(), std::filesystem::perms{0755});
  std::filesystem::permissions(folder.in("out"), std::filesystem::perms{0555});
  const test::Nobody nobody;
  expect_error(ErrorCode::kUnavailable,
               {"rank 0: " + folder.in("out/.lock") + ": Permission denied"},
               [&] {
                 save_in(folder.in("out"), {1, 1});
               });
}

TEST(RootOnDisk, LargeFilesAreHashedPieceByPiece) {
  const Folder folder;
  const auto size = static_cast<std::size_t>(2 * kChunkBytes + 5);
  PlannedFile file{.name = "state.safetensors", .header = {}, .read = {}};
  file.header = place_tensors(
      {TensorEntry{.name = "x", .type = {DType::kUInt8}, .shape = {size}},
       TensorEntry{.name = "y", .type = {DType::kFloat64}, .shape = {3}}},
      {});
  file.read = [](std::size_t tensor, std::uint64_t offset,
                 std::span<std::byte> to) {
    for (std::byte& byte : to) {
      byte = std::byte(offset / 255 + offset + tensor);
      ++offset;
    }
  };
  file.tensors = {{"x", "fragments/0"}, {"y", ""}};
  test::on_ranks(1, [&](comm::Communicator& comm) {
    Root root(posix_file_system(), comm, folder.path(), test::kRun,
              test::quick_options());
    Root::Contents contents;
    contents.files = {file};
    contents.manifest.scalars_of_ranks.resize(1);
    contents.manifest.extra_of_ranks.resize(1);
    root.write(std::move(contents));
  });
  const auto found = find_checkpoints(posix_file_system(), folder.path());
  ASSERT_EQ(found.size(), 1U);
  ASSERT_TRUE(found[0].complete) << found[0].problem;
  const SavedFile& saved = found[0].manifest.files.at(0);
  EXPECT_EQ(saved.bytes, 4096 + 24 + size);
  EXPECT_EQ(saved.chunk_hashes.size(), 3U);
  EXPECT_EQ(saved.tensors, file.tensors);
  VerifiedFile verified(posix_file_system(), folder.in(found[0].name), saved);
  for (std::size_t tensor = 0; tensor < 2; ++tensor) {
    const TensorEntry& entry = file.header.tensors[tensor];
    std::vector<std::byte> bytes(static_cast<std::size_t>(entry.bytes));
    std::vector<std::byte> expected(bytes.size());
    verified.read(entry.begin, bytes);
    file.read(tensor, 0, expected);
    EXPECT_EQ(bytes, expected);
  }
}

}  // namespace
}  // namespace thinwire::checkpoint::directory_test
