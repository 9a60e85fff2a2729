// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace thinwire::checkpoint {

/// The result of stat().
struct FileInfo {
  enum class Kind { kFile, kDirectory, kLink, kOther };
  Kind kind = Kind::kFile;
  std::uint64_t bytes = 0;
};

/// A file that is open. The destructor closes it and says nothing.
class File {
 public:
  virtual ~File() = default;
  /// Reserves space; a file system that cannot is no error.
  virtual void allocate(std::uint64_t bytes) = 0;
  /// All of it.
  virtual void write_at(std::uint64_t offset,
                        std::span<const std::byte> bytes) = 0;
  /// Up to bytes.size(), fewer only at the end of the file.
  virtual std::size_t read_at(std::uint64_t offset,
                              std::span<std::byte> bytes) = 0;
  /// Begins to write back what lies in the range; a hint.
  virtual void write_back(std::uint64_t offset, std::uint64_t bytes) = 0;
  [[nodiscard]] virtual std::uint64_t size() = 0;
  /// Blocks until all written bytes are on the disk. A failed call is never
  /// repeated.
  virtual void sync() = 0;
  /// Its error counts; nothing else may be called afterwards.
  virtual void close() = 0;
};

/// The interface of checkpoints to a file system. Tests have one that loses
/// unsynced writes. Paths are as the caller gave them. Every call throws
/// Error(kUnavailable) with the path and the cause: "PATH: No space left on
/// device".
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// A new file; fails where there is one, and on links.
  [[nodiscard]] virtual std::unique_ptr<File> create(
      const std::string& path) = 0;
  /// A file to read; no link where `follows_links` is false, no device, no
  /// pipe.
  [[nodiscard]] virtual std::unique_ptr<File> open(const std::string& path,
                                                   bool follows_links) = 0;
  /// Anything of this name, a link without its file too.
  [[nodiscard]] virtual bool exists(const std::string& path) = 0;
  [[nodiscard]] virtual FileInfo stat(const std::string& path) = 0;
  /// Names in a directory, sorted, without . and ..
  [[nodiscard]] virtual std::vector<std::string> list(
      const std::string& path) = 0;
  /// With all above it; one that is there is fine.
  virtual void make_directories(const std::string& path) = 0;
  /// Fails where there is one.
  virtual void make_directory(const std::string& path) = 0;
  /// Replaces a file; a directory only where nothing is.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  virtual void remove_file(const std::string& path) = 0;
  virtual void remove_directory(const std::string& path) = 0;  ///< Empty.
  /// Names that were made, renamed or removed in it are on the disk.
  virtual void sync_directory(const std::string& path) = 0;
  [[nodiscard]] virtual std::uint64_t free_bytes(const std::string& path) = 0;

  /// Before something is looked at again; tests' own do not.
  virtual void wait(std::chrono::milliseconds pause) {
    std::this_thread::sleep_for(pause);
  }

  /// Held until destroyed.
  class Lock {
   public:
    virtual ~Lock() = default;
  };
  /// For one process at a time; `owner` ("HOST pid 123") is what another one is
  /// told: Error(kFailedPrecondition). Null where the file system has no locks.
  [[nodiscard]] virtual std::unique_ptr<Lock> lock(
      const std::string& path, const std::string& owner) = 0;
};

/// The machine's own.
[[nodiscard]] FileSystem& posix_file_system();

/// File systems of several hosts show late to one what another has made: how
/// long that may take.
inline constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(30);

/// Calls is_there() until it says so; the pauses in between grow from 1 ms to
/// 1 s. Returns false once they come to `patience`.
template <class IsThere>
[[nodiscard]] bool keep_looking(FileSystem& files,
                                std::chrono::milliseconds patience,
                                const IsThere& is_there) {
  using std::chrono::milliseconds;
  milliseconds waited{0};
  for (milliseconds pause{1}; !is_there();
       pause = std::min(2 * pause, milliseconds(1000))) {
    if (waited >= patience) return false;
    files.wait(pause);
    waited += pause;
  }
  return true;
}

}  // namespace thinwire::checkpoint
