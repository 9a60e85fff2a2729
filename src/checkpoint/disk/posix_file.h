// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "checkpoint/disk/file_system.h"

namespace thinwire::checkpoint::posix {

/// Throws Error(kUnavailable) with "PATH: CAUSE" for this errno.
[[noreturn]] void fail(const std::string& path, int number);

/// Makes a system call, and repeats it while signals interrupt it.
template <class Call>
auto uninterrupted(const Call& call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

/// Calls open(2), and fail() after an error. The caller closes the descriptor.
[[nodiscard]] int open_descriptor(const std::string& path, int flags);

/// Owns a descriptor.
class PosixFile final : public File {
 public:
  PosixFile(std::string path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor) {}
  ~PosixFile() override;
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  void allocate(std::uint64_t bytes) override;
  void write_at(std::uint64_t offset,
                std::span<const std::byte> bytes) override;
  std::size_t read_at(std::uint64_t offset,
                      std::span<std::byte> bytes) override;
  void write_back(std::uint64_t offset, std::uint64_t bytes) override;
  [[nodiscard]] std::uint64_t size() override;
  void sync() override;
  void close() override;

 private:
  [[noreturn]] void fail_to_write(std::uint64_t bytes, int number) const;

  std::string path_;
  int descriptor_;
};

}  // namespace thinwire::checkpoint::posix
