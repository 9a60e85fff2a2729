// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/disk/posix_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <system_error>

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

// A full disk is told in bytes.
void PosixFile::fail_to_write(std::uint64_t bytes, int number) const {
  struct statvfs info {};
  if (number != ENOSPC || ::fstatvfs(descriptor_, &info) != 0)
    fail(path_, number);
  throw Error(ErrorCode::kUnavailable,
              fmt::format("{}: {}: writing {} bytes failed, {} are free", path_,
                          std::generic_category().message(number), bytes,
                          std::uint64_t{info.f_bavail} * info.f_frsize));
}

// Not posix_fallocate, which writes zeros where there is no fallocate.
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

// Once: a second fsync may say that all is well after the kernel has thrown the
// pages away that it could not write.
void PosixFile::sync() {
  if (::fsync(descriptor_) != 0) fail(path_, errno);
}

// After EINTR the descriptor is closed all the same.
void PosixFile::close() {
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (::close(descriptor) != 0 && errno != EINTR) fail(path_, errno);
}

}  // namespace thinwire::checkpoint::posix
