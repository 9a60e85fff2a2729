// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "thinwire/core/buffer.h"

namespace thinwire::apps::bench {

/// Files of given sizes, and only the calls that write or read them. No
/// checkpoint of the same bytes can be faster.
class RawFiles {
 public:
  /// `folder` must exist.
  RawFiles(std::string folder, std::vector<std::uint64_t> sizes);

  /// Calls create, fallocate, pwrite in pieces of 4 MiB, and fsync if
  /// `durable`, for each file. The memory that it writes is no longer in the
  /// cache.
  void write(bool durable);
  void remove();

 private:
  [[nodiscard]] std::string path(std::size_t file) const;

  std::string folder_;
  std::vector<std::uint64_t> sizes_;
  Buffer memory_;
};

/// Reads all of these files with pread, in pieces of 4 MiB. Each piece has new
/// memory, as in a load that keeps its old values until all is read.
void read_files(const std::vector<std::string>& paths);

/// Does what even the smallest checkpoint needs: its directory, five small
/// files, two of them renamed, and seven fsyncs. remove_small_commit() removes
/// it again.
void small_commit(const std::string& root, std::uint64_t file_bytes);
void remove_small_commit(const std::string& root);

}  // namespace thinwire::apps::bench
