// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <span>
#include <system_error>

#include "checkpoint/disk/file_system.h"
#include "checkpoint/disk/posix_file.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint::posix {

void fail(const std::string& path, int number) {
  throw Error(
      ErrorCode::kUnavailable,
      fmt::format("{}: {}", path, std::generic_category().message(number)));
}

int open_descriptor(const std::string& path, int flags) {
  constexpr mode_t kMode = 0666;
  const int descriptor = uninterrupted(
      [&] { return ::open(path.c_str(), flags | O_CLOEXEC, kMode); });
  if (descriptor >= 0) return descriptor;
  if (errno == ELOOP && (flags & O_NOFOLLOW) != 0) {
    throw Error(ErrorCode::kUnavailable,
                path + ": is a symbolic link, which is not followed here");
  }
  fail(path, errno);
}

PosixFile::~PosixFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

// Throws an error with the number of bytes that the disk or a limit still
// allows.
void PosixFile::fail_to_write(std::uint64_t bytes, int number) const {
  struct statvfs disk {};
  struct rlimit limit {};
  std::string most;
  if (number == ENOSPC && ::fstatvfs(descriptor_, &disk) == 0)
    most = fmt::format("{} are free",
                       std::uint64_t{disk.f_bavail} * disk.f_frsize);
  else if (number == EFBIG && ::getrlimit(RLIMIT_FSIZE, &limit) == 0)
    most = fmt::format("a file may have {} (ulimit -f)", limit.rlim_cur);
  else
    fail(path_, number);
  throw Error(
      ErrorCode::kUnavailable,
      fmt::format("{}: {}: writing {} bytes failed, {}", path_,
                  std::generic_category().message(number), bytes, most));
}

// Does not use posix_fallocate, which writes zeros if the file system lacks
// fallocate.
void PosixFile::allocate(std::uint64_t bytes) {
  if (bytes == 0) return;
  const int result = uninterrupted([&] {
    return ::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes));
  });
  if (result == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return;
  fail_to_write(bytes, errno);
}

void PosixFile::write_at(std::uint64_t offset,
                         std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = uninterrupted([&] {
      return ::pwrite(descriptor_, bytes.data(), bytes.size(),
                      static_cast<off_t>(offset));
    });
    if (written < 0) fail_to_write(bytes.size(), errno);
    if (written == 0) fail_to_write(bytes.size(), EIO);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

std::size_t PosixFile::read_at(std::uint64_t offset,
                               std::span<std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = uninterrupted([&] {
      return ::pread(descriptor_, bytes.data() + done, bytes.size() - done,
                     static_cast<off_t>(offset + done));
    });
    if (count < 0) fail(path_, errno);
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

void PosixFile::write_back(std::uint64_t offset, std::uint64_t bytes) {
  ::sync_file_range(descriptor_, static_cast<off64_t>(offset),
                    static_cast<off64_t>(bytes), SYNC_FILE_RANGE_WRITE);
}

std::uint64_t PosixFile::size() {
  struct stat info {};
  if (::fstat(descriptor_, &info) != 0) fail(path_, errno);
  return static_cast<std::uint64_t>(info.st_size);
}

// Calls fsync only once. A second call may succeed although the kernel has
// dropped the pages that it could not write.
void PosixFile::sync() {
  if (::fsync(descriptor_) != 0) fail(path_, errno);
}

// The descriptor is closed even after EINTR.
void PosixFile::close() {
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (::close(descriptor) != 0 && errno != EINTR) fail(path_, errno);
}

}  // namespace thinwire::checkpoint::posix

namespace thinwire::checkpoint {
namespace {

using posix::fail;

FileInfo::Kind kind_of(mode_t mode) {
  if (S_ISREG(mode)) return FileInfo::Kind::kFile;
  if (S_ISDIR(mode)) return FileInfo::Kind::kDirectory;
  if (S_ISLNK(mode)) return FileInfo::Kind::kLink;
  return FileInfo::Kind::kOther;
}

class FileLock final : public FileSystem::Lock {
 public:
  explicit FileLock(std::unique_ptr<posix::PosixFile> file)
      : file_(std::move(file)) {}

 private:
  std::unique_ptr<posix::PosixFile> file_;
};

// Returns the text that the holder wrote, or "another process" if it has not
// written yet.
std::string holder(posix::PosixFile& file) {
  std::array<std::byte, 256> bytes{};
  const std::size_t count = file.read_at(0, bytes);
  if (count == 0) return "another process";
  return {reinterpret_cast<const char*>(bytes.data()), count};
}

class PosixFileSystem final : public FileSystem {
 public:
  std::unique_ptr<File> create(const std::string& path) override {
    return std::make_unique<posix::PosixFile>(
        path,
        posix::open_descriptor(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW));
  }

  std::unique_ptr<File> open(const std::string& path,
                             bool follows_links) override {
    // Without O_NONBLOCK, opening a pipe would block until its writer opens it.
    const int links = follows_links ? 0 : O_NOFOLLOW;
    const int descriptor =
        posix::open_descriptor(path, O_RDONLY | O_NONBLOCK | links);
    auto file = std::make_unique<posix::PosixFile>(path, descriptor);
    struct stat info {};
    if (::fstat(descriptor, &info) != 0) fail(path, errno);
    if (!S_ISREG(info.st_mode))
      throw Error(ErrorCode::kUnavailable, path + ": is not a regular file");
    return file;
  }

  bool exists(const std::string& path) override {
    struct stat info {};
    if (::lstat(path.c_str(), &info) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    fail(path, errno);
  }

  FileInfo stat(const std::string& path) override {
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0) fail(path, errno);
    return {kind_of(info.st_mode), static_cast<std::uint64_t>(info.st_size)};
  }

  std::vector<std::string> list(const std::string& path) override {
    std::vector<std::string> names;
    std::error_code error;
    std::filesystem::directory_iterator entry(path, error);
    const std::filesystem::directory_iterator end;
    while (!error && entry != end) {
      names.push_back(entry->path().filename().string());
      entry.increment(error);
    }
    if (error) fail(path, error.value());
    std::sort(names.begin(), names.end());
    return names;
  }

  void make_directories(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) fail(path, error.value());
  }

  void make_directory(const std::string& path) override {
    constexpr mode_t kMode = 0777;
    if (::mkdir(path.c_str(), kMode) != 0) fail(path, errno);
  }

  void rename(const std::string& from, const std::string& to) override {
    // Prevents rename(2) from replacing an empty directory.
    if (stat(from).kind == FileInfo::Kind::kDirectory && exists(to))
      fail(to, EEXIST);
    if (::rename(from.c_str(), to.c_str()) != 0) fail(from, errno);
  }

  void remove_file(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) fail(path, errno);
  }

  void remove_directory(const std::string& path) override {
    if (::rmdir(path.c_str()) != 0) fail(path, errno);
  }

  void sync_directory(const std::string& path) override {
    const int descriptor = posix::open_descriptor(path, O_RDONLY | O_DIRECTORY);
    const posix::PosixFile directory(path, descriptor);
    // Network file systems without this call return EINVAL. Their servers
    // already have the names.
    if (::fsync(descriptor) != 0 && errno != EINVAL) fail(path, errno);
  }

  std::uint64_t free_bytes(const std::string& path) override {
    struct statvfs info {};
    if (::statvfs(path.c_str(), &info) != 0) fail(path, errno);
    return std::uint64_t{info.f_bavail} * info.f_frsize;
  }

  // Uses flock(2), because the kernel releases its locks when a process dies.
  std::unique_ptr<Lock> lock(const std::string& path,
                             const std::string& owner) override {
    const int descriptor =
        posix::open_descriptor(path, O_RDWR | O_CREAT | O_NOFOLLOW);
    auto file = std::make_unique<posix::PosixFile>(path, descriptor);
    if (posix::uninterrupted(
            [&] { return ::flock(descriptor, LOCK_EX | LOCK_NB); }) != 0) {
      if (errno != EWOULDBLOCK)
        return nullptr;  // This file system has no
                         // locks.
      throw Error(
          ErrorCode::kFailedPrecondition,
          fmt::format("{}: {} writes checkpoints here", path, holder(*file)));
    }
    if (::ftruncate(descriptor, 0) != 0) fail(path, errno);
    file->write_at(0, std::as_bytes(std::span(owner)));
    return std::make_unique<FileLock>(std::move(file));
  }
};

}  // namespace

FileSystem& posix_file_system() {
  static PosixFileSystem files;
  return files;
}

}  // namespace thinwire::checkpoint
