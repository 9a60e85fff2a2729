// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "thinwire/core/error.h"

namespace thinwire::train_gpt {
namespace {

// What its holder wrote there: its process number.
std::string holder(int file) {
  std::array<char, 32> text{};
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  return {text.data(), size > 0 ? static_cast<std::size_t>(size) : 0};
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder) {
  const std::string path = (folder / ".lock").string();
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0)
    throw Error(ErrorCode::kUnavailable,
                fmt::format("{}: {}", path, std::strerror(errno)));
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    const std::string process = holder(file_);
    ::close(file_);
    throw Error(ErrorCode::kUnavailable,
                fmt::format("--out: another run is writing to '{}' (process "
                            "{}); give another folder, or wait for its end",
                            folder.string(), process));
  }
  // A file system without locks takes the run as it did before there were any.
  const std::string own = std::to_string(::getpid());
  if (::ftruncate(file_, 0) != 0 ||
      ::pwrite(file_, own.data(), own.size(), 0) < 0) {
    const std::string why = std::strerror(errno);
    ::close(file_);
    throw Error(ErrorCode::kUnavailable,
                fmt::format("{}: cannot be written: {}", path, why));
  }
}

FolderLock::~FolderLock() { ::close(file_); }

}  // namespace thinwire::train_gpt
