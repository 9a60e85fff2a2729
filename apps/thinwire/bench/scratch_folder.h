// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace thinwire::apps::bench {

/// A new folder that is removed with its content, also after SIGINT or SIGTERM,
/// as soon as check() is called.
class ScratchFolder {
 public:
  /// Creates thinwire_bench_XXXXXX in `parent`. Throws std::runtime_error.
  explicit ScratchFolder(const std::string& parent);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Throws std::runtime_error after a signal.
  static void check();

 private:
  std::string path_;
  void (*interrupted_)(int) = nullptr;  // previous handlers
  void (*terminated_)(int) = nullptr;
};

}  // namespace thinwire::apps::bench
