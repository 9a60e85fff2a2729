// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace thinwire::apps::bench {

/// A new folder to write in, removed with all that is in it: also when SIGINT
/// or SIGTERM comes, as soon as check() is called.
class ScratchFolder {
 public:
  /// thinwire_bench_XXXXXX in `parent`. Throws std::runtime_error.
  explicit ScratchFolder(const std::string& parent);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Throws std::runtime_error once a signal has come.
  static void check();

  /// /dev/shm, or an empty text where there is none.
  [[nodiscard]] static std::string in_memory();
  [[nodiscard]] static std::uint64_t free_bytes(const std::string& parent);

 private:
  std::string path_;
  void (*interrupted_)(int) = nullptr;  // handlers before
  void (*terminated_)(int) = nullptr;
};

}  // namespace thinwire::apps::bench
