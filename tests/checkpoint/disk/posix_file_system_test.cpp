// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/disk/file_system.h"
#include "checkpoint/disk/posix_file.h"
#include "support/errors.h"
#include "support/folder.h"

namespace thinwire::checkpoint::posix_file_system_test {
namespace {

using test::expect_error;
using test::Folder;

std::vector<std::byte> bytes_of(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = std::byte(i * 7 + i / 256);
  return bytes;
}

void write(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

TEST(PosixFileSystem, WrittenBytesAreReadBack) {
  const Folder folder;
  FileSystem& files = posix_file_system();
  for (const std::size_t count : {0, 1, 4097}) {
    const std::string path = folder.in(std::to_string(count));
    const std::vector<std::byte> bytes = bytes_of(count);
    const auto file = files.create(path);
    file->allocate(count);
    EXPECT_EQ(file->size(), count);
    const std::size_t half = count / 2;
    file->write_at(half, std::span(bytes).subspan(half));
    file->write_at(0, std::span(bytes).first(half));
    file->write_back(0, count);
    file->sync();
    file->close();

    std::vector<std::byte> back(count + 10);
    const auto reading = files.open(path, false);
    EXPECT_EQ(reading->read_at(0, back), count);
    back.resize(count);
    EXPECT_EQ(back, bytes);
    EXPECT_EQ(reading->read_at(count + 1, back), 0U);
    EXPECT_EQ(files.stat(path).bytes, count);
    EXPECT_EQ(files.stat(path).kind, FileInfo::Kind::kFile);
  }
}

TEST(PosixFileSystem, DoesNotOverwriteExistingFiles) {
  const Folder folder;
  FileSystem& files = posix_file_system();
  write(folder.in("file"), "mine");
  std::filesystem::create_symlink("elsewhere", folder.in("link"));
  for (const std::string& name : std::vector<std::string>{"file", "link"}) {
    expect_error(ErrorCode::kUnavailable, {folder.in(name), "File exists"},
                 [&] { (void)files.create(folder.in(name)); });
  }
  EXPECT_FALSE(std::filesystem::exists(folder.in("elsewhere")));
}

TEST(PosixFileSystem, ReadsRegularFilesOnly) {
  const Folder folder;
  FileSystem& files = posix_file_system();
  write(folder.in("file"), "x");
  std::filesystem::create_symlink("file", folder.in("link"));
  ASSERT_EQ(::mkfifo(folder.in("pipe").c_str(), 0600), 0);
  EXPECT_EQ(files.open(folder.in("link"), true)->size(), 1U);
  expect_error(ErrorCode::kUnavailable, {folder.in("link"), "symbolic link"},
               [&] { (void)files.open(folder.in("link"), false); });
  for (const std::string& path : {folder.in("pipe"), folder.in(".")}) {
    expect_error(ErrorCode::kUnavailable, {path, "is not a regular file"},
                 [&] { (void)files.open(path, true); });
  }
  expect_error(ErrorCode::kUnavailable, {"none", "No such file"},
               [&] { (void)files.open(folder.in("none"), false); });
}

TEST(PosixFileSystem, KnowsNamesAndKinds) {
  const Folder folder;
  FileSystem& files = posix_file_system();
  files.make_directories(folder.in("a/b/c"));
  files.make_directories(folder.in("a/b/c"));
  files.make_directory(folder.in("a/d"));
  write(folder.in("a/.hidden"), "");
  std::filesystem::create_symlink("nowhere", folder.in("a/link"));
  EXPECT_EQ(files.list(folder.in("a")),
            (std::vector<std::string>{".hidden", "b", "d", "link"}));
  EXPECT_EQ(files.stat(folder.in("a/b")).kind, FileInfo::Kind::kDirectory);
  EXPECT_EQ(files.stat(folder.in("a/link")).kind, FileInfo::Kind::kLink);
  EXPECT_EQ(files.stat("/dev/null").kind, FileInfo::Kind::kOther);
  EXPECT_TRUE(files.exists(folder.in("a/link")));
  EXPECT_FALSE(files.exists(folder.in("a/none")));
  EXPECT_FALSE(files.exists(folder.in("a/.hidden/below")));
  files.sync_directory(folder.in("a"));
  EXPECT_GT(files.free_bytes(folder.in("a")), 0U);
}

TEST(PosixFileSystem, RenamesAndRemoves) {
  const Folder folder;
  FileSystem& files = posix_file_system();
  write(folder.in("old"), "old");
  write(folder.in("new"), "newer");
  files.rename(folder.in("new"), folder.in("old"));
  EXPECT_EQ(files.stat(folder.in("old")).bytes, 5U);
  files.make_directory(folder.in("a"));
  files.make_directory(folder.in("b"));
  expect_error(ErrorCode::kUnavailable, {folder.in("b"), "File exists"},
               [&] { files.rename(folder.in("a"), folder.in("b")); });
  files.remove_directory(folder.in("b"));
  files.rename(folder.in("a"), folder.in("b"));
  files.remove_file(folder.in("old"));
  EXPECT_EQ(files.list(folder.path()), (std::vector<std::string>{"b"}));
}

TEST(PosixFileSystem, NamesThePathAndTheCause) {
  const Folder folder;
  FileSystem& files = posix_file_system();
  write(folder.in("file"), "");
  const std::string none = folder.in("none");
  const std::string below = folder.in("file/below");
  const auto fails = [](const std::string& path, std::string_view cause,
                        const std::function<void()>& call) {
    expect_error(ErrorCode::kUnavailable, {path + ": ", cause}, call);
  };
  fails(none, "No such file", [&] { (void)files.stat(none); });
  fails(none, "No such file", [&] { (void)files.list(none); });
  fails(none, "No such file", [&] { files.remove_file(none); });
  fails(none, "No such file", [&] { files.remove_directory(none); });
  fails(none, "No such file", [&] { files.rename(none, folder.in("x")); });
  fails(none, "No such file", [&] { files.sync_directory(none); });
  fails(none, "No such file", [&] { (void)files.free_bytes(none); });
  fails(below, "Not a directory", [&] { (void)files.create(below); });
  fails(below, "Not a directory", [&] { files.make_directories(below); });
  fails(below, "Not a directory", [&] { files.make_directory(below); });
}

TEST(PosixFileSystem, FullDiskIsReportedInBytes) {
  posix::PosixFile full("/dev/full",
                        posix::open_descriptor("/dev/full", O_WRONLY));
  expect_error(ErrorCode::kUnavailable,
               {"/dev/full: No space left on device: writing 7 bytes failed, ",
                " are free"},
               [&] { full.write_at(0, bytes_of(7)); });
}

TEST(PosixFileSystem, ASignalDoesNotEndACall) {
  int calls = 0;
  const int result = posix::uninterrupted([&] {
    errno = EINTR;
    return ++calls < 3 ? -1 : 7;
  });
  EXPECT_EQ(result, 7);
  EXPECT_EQ(calls, 3);
}

// pwrite(2) writes up to the limit and says how much; what is left then fails.
TEST(PosixFileSystem, PartialWritesAreContinued) {
  const Folder folder;
  const auto file = posix_file_system().create(folder.in("file"));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit ten{10, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &ten), 0);
  expect_error(ErrorCode::kUnavailable, {folder.in("file"), ": File too large"},
               [&] { file->write_at(0, bytes_of(20)); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(file->size(), 10U);
}

TEST(PosixFileSystem, LocksAFileForOneHolder) {
  const Folder folder;
  FileSystem& files = posix_file_system();
  auto lock = files.lock(folder.in(".lock"), "here pid 12");
  if (!lock) GTEST_FAIL() << "this disk has no locks";
  expect_error(ErrorCode::kFailedPrecondition,
               {folder.in(".lock"), "here pid 12 writes checkpoints here"},
               [&] { (void)files.lock(folder.in(".lock"), "there pid 3"); });
  lock.reset();
  EXPECT_NE(files.lock(folder.in(".lock"), "x"), nullptr);
}

}  // namespace
}  // namespace thinwire::checkpoint::posix_file_system_test
