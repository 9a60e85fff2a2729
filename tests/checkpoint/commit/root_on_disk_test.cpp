// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/dummy.h"
#include "checkpoint/read/verified_file.h"
#include "support/errors.h"
#include "support/folder.h"

namespace thinwire::checkpoint::root_on_disk_test {
namespace {

using test::Dummy;
using test::expect_error;
using test::Folder;

FileSystem& disk() { return posix_file_system(); }

void save(const std::string& root, const Dummy& dummy) {
  test::on_ranks(3, [&](comm::Communicator& comm) {
    test::save_dummy(disk(), comm, root, dummy);
  });
}

std::int64_t newest(const std::string& root) {
  return test::newest_tag(disk(), root);
}

TEST(RootOnDisk, SavesSavesAgainAndRetains) {
  const Folder folder;
  const std::string root = folder.in("out/checkpoints");
  save(root, {1, 1});
  save(root, {1, 2});
  EXPECT_EQ(newest(root), 2);
  save(root, {2, 3});
  test::on_ranks(3, [&](comm::Communicator& comm) {
    Root directory(disk(), comm, root, test::kRun, test::quick_options());
    directory.retain({.keep_last = 1}, "");
  });
  EXPECT_EQ(newest(root), 3);
  EXPECT_EQ(disk().list(root),
            (std::vector<std::string>{".lock", "latest", "step-0000000002"}));
}

TEST(RootOnDisk, MayBeALink) {
  const Folder folder;
  std::filesystem::create_directory(folder.in("scratch"));
  std::filesystem::create_symlink("scratch", folder.in("out"));
  save(folder.in("out"), {1, 1});
  EXPECT_EQ(newest(folder.in("scratch")), 1);
  EXPECT_EQ(newest(folder.in("out")), 1);
}

TEST(RootOnDisk, AFileThatIsALinkIsNone) {
  const Folder folder;
  save(folder.path(), {1, 1});
  save(folder.path(), {2, 2});
  const std::string directory = folder.in("step-0000000002/");
  for (const std::string& name :
       std::vector<std::string>{"model.safetensors", "manifest.json"}) {
    std::filesystem::rename(directory + name, directory + "elsewhere");
    std::filesystem::create_symlink("elsewhere", directory + name);
    EXPECT_EQ(newest(folder.path()), 1) << name;
    const auto found = find_checkpoints(disk(), folder.path());
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
      save(root, {1, 1});
    });
  }
  EXPECT_EQ(std::filesystem::file_size(folder.in("out")), 4U);
}

// Root may write anywhere, so that for a moment this is somebody else.
class Nobody {
 public:
  Nobody() : was_(::geteuid()) {
    constexpr uid_t kNobody = 65534;
    if (was_ == 0 && ::seteuid(kNobody) != 0) ADD_FAILURE() << "seteuid";
  }
  ~Nobody() {
    if (was_ == 0 && ::seteuid(was_) != 0) ADD_FAILURE() << "seteuid";
  }
  Nobody(const Nobody&) = delete;
  Nobody& operator=(const Nobody&) = delete;

 private:
  uid_t was_;
};

TEST(RootOnDisk, ADirectoryThatMayNotBeWrittenIsNamed) {
  const Folder folder;
  std::filesystem::create_directory(folder.in("out"));
  std::filesystem::permissions(folder.path(), std::filesystem::perms{0755});
  std::filesystem::permissions(folder.in("out"), std::filesystem::perms{0555});
  const Nobody nobody;
  expect_error(ErrorCode::kUnavailable,
               {"rank 0: " + folder.in("out/.lock") + ": Permission denied"},
               [&] {
                 save(folder.in("out"), {1, 1});
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
    Root root(disk(), comm, folder.path(), test::kRun, test::quick_options());
    Root::Contents contents;
    contents.files = {file};
    contents.manifest.scalars_of_ranks.resize(1);
    contents.manifest.extra_of_ranks.resize(1);
    root.write(std::move(contents));
  });
  const auto found = find_checkpoints(disk(), folder.path());
  ASSERT_EQ(found.size(), 1U);
  ASSERT_TRUE(found[0].complete) << found[0].problem;
  const SavedFile& saved = found[0].manifest.files.at(0);
  EXPECT_EQ(saved.bytes, 4096 + 24 + size);
  EXPECT_EQ(saved.chunk_hashes.size(), 3U);
  EXPECT_EQ(saved.tensors, file.tensors);
  VerifiedFile verified(disk(), folder.in(found[0].name), saved);
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
}  // namespace thinwire::checkpoint::root_on_disk_test
