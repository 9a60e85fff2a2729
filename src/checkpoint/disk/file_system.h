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

/// An open file. The destructor closes it and ignores errors.
class File {
 public:
  virtual ~File() = default;
  /// Reserves space. Does nothing if the file system cannot.
  virtual void allocate(std::uint64_t bytes) = 0;
  /// Writes all bytes.
  virtual void write_at(std::uint64_t offset,
                        std::span<const std::byte> bytes) = 0;
  /// Reads bytes.size() bytes, or fewer at the end of the file.
  virtual std::size_t read_at(std::uint64_t offset,
                              std::span<std::byte> bytes) = 0;
  /// A hint to begin writing the range to disk.
  virtual void write_back(std::uint64_t offset, std::uint64_t bytes) = 0;
  [[nodiscard]] virtual std::uint64_t size() = 0;
  /// Blocks until all written bytes are on disk. A failed call is never
  /// repeated.
  virtual void sync() = 0;
  /// Closes the file and reports its error. No other call may follow.
  virtual void close() = 0;
};

/// File system that holds checkpoints. Tests have one that loses unsynced
/// writes. Error messages show paths as the caller gave them. Every call throws
/// Error(kUnavailable) with the path and the cause, for example "PATH: No space
/// left on device".
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// Creates a file. Fails if the name exists, even as a link.
  [[nodiscard]] virtual std::unique_ptr<File> create(
      const std::string& path) = 0;
  /// Opens a regular file for reading. Fails on a link unless `follows_links`.
  [[nodiscard]] virtual std::unique_ptr<File> open(const std::string& path,
                                                   bool follows_links) = 0;
  /// Returns whether the name exists, even as a broken link.
  [[nodiscard]] virtual bool exists(const std::string& path) = 0;
  [[nodiscard]] virtual FileInfo stat(const std::string& path) = 0;
  /// Returns the sorted names in a directory, without "." and "..".
  [[nodiscard]] virtual std::vector<std::string> list(
      const std::string& path) = 0;
  /// Makes a directory and its missing parents. Existing directories are
  /// accepted.
  virtual void make_directories(const std::string& path) = 0;
  /// Makes a directory. Fails if the name exists.
  virtual void make_directory(const std::string& path) = 0;
  /// Renames an entry. A file may replace another file, but a directory needs
  /// an unused name.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  virtual void remove_file(const std::string& path) = 0;
  virtual void remove_directory(const std::string& path) = 0;  ///< Must be
                                                               ///< empty.
  /// Blocks until new, renamed and removed names in the directory are on disk.
  virtual void sync_directory(const std::string& path) = 0;
  [[nodiscard]] virtual std::uint64_t free_bytes(const std::string& path) = 0;

  /// Waits before another look at a file. Tests override it so as not to wait.
  virtual void wait(std::chrono::milliseconds pause) {
    std::this_thread::sleep_for(pause);
  }

  /// Lock that is held until this object is destroyed.
  class Lock {
   public:
    virtual ~Lock() = default;
  };
  /// Takes a lock for one process. If another process holds it, throws
  /// Error(kFailedPrecondition) with the `owner` that the other process gave,
  /// such as "HOST pid 123". Returns null if the file system has no locks.
  [[nodiscard]] virtual std::unique_ptr<Lock> lock(
      const std::string& path, const std::string& owner) = 0;
};

/// Returns the machine's file system.
[[nodiscard]] FileSystem& posix_file_system();

/// Time after which a network file system should show a new file to other
/// hosts.
inline constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(30);

/// Calls is_there() until it returns true, with pauses that grow from 1 ms to 1
/// s. Returns false if the pauses have added up to `patience`.
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
