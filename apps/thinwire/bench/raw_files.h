// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "thinwire/core/buffer.h"

namespace thinwire::apps::bench {

/// Files of given sizes, and nothing but the calls that write or read them:
/// what no checkpoint of the same bytes can beat.
class RawFiles {
 public:
  /// In `folder`, which is there.
  RawFiles(std::string folder, std::vector<std::uint64_t> sizes);

  /// Per file: create, fallocate, pwrite in pieces of 4 MiB, and fsync if
  /// `durable`; from memory that is no longer in the cache.
  void write(bool durable);
  void remove();

 private:
  [[nodiscard]] std::string path(std::size_t file) const;

  std::string folder_;
  std::vector<std::uint64_t> sizes_;
  Buffer memory_;
};

/// Reads all of these files with pread, in pieces of 4 MiB, each into new
/// memory, as whoever wants to keep what he has until all is there.
void read_files(const std::vector<std::string>& paths);

/// What a checkpoint of next to nothing cannot do without: its directory, five
/// small files, two of them renamed, and seven fsyncs. Removes it again with
/// remove_small_commit().
void small_commit(const std::string& root, std::uint64_t file_bytes);
void remove_small_commit(const std::string& root);

}  // namespace thinwire::apps::bench
