// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/disk/posix_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <span>

#include "checkpoint/disk/posix_file.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint::posix {
namespace {

class FileLock final : public FileSystem::Lock {
 public:
  explicit FileLock(std::unique_ptr<PosixFile> file) : file_(std::move(file)) {}

 private:
  std::unique_ptr<PosixFile> file_;
};

// Returns the text that the holder wrote, or an empty one if it has not written
// yet.
std::string holder(PosixFile& file) {
  std::array<std::byte, 256> bytes{};
  const std::size_t count = file.read_at(0, bytes);
  if (count == 0) return "another process";
  return {reinterpret_cast<const char*>(bytes.data()), count};
}

}  // namespace

std::unique_ptr<FileSystem::Lock> lock(const std::string& path,
                                       const std::string& owner) {
  const int descriptor = open_descriptor(path, O_RDWR | O_CREAT | O_NOFOLLOW);
  auto file = std::make_unique<PosixFile>(path, descriptor);
  if (uninterrupted([&] { return ::flock(descriptor, LOCK_EX | LOCK_NB); }) !=
      0) {
    if (errno != EWOULDBLOCK) return nullptr;  // no locks on this file system
    throw Error(
        ErrorCode::kFailedPrecondition,
        fmt::format("{}: {} writes checkpoints here", path, holder(*file)));
  }
  if (::ftruncate(descriptor, 0) != 0) fail(path, errno);
  file->write_at(0, std::as_bytes(std::span(owner)));
  return std::make_unique<FileLock>(std::move(file));
}

}  // namespace thinwire::checkpoint::posix
