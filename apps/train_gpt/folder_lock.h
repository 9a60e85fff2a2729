// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace thinwire::train_gpt {

/// Keeps other runs out of an output folder while this object lives: an
/// advisory lock (flock) on FOLDER/.lock. It is the open file's, so that of a
/// process that has died is not in the way; the file stays.
class FolderLock {
 public:
  /// Throws Error(kUnavailable) naming the folder, and the process that has it.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int file_ = -1;
};

}  // namespace thinwire::train_gpt
