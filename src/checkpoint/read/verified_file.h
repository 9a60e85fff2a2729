// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/disk/file_system.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "thinwire/core/buffer.h"

namespace thinwire::checkpoint {

/// Returns the contents of a file. Throws Error(kUnavailable), and
/// Error(kCorruptCheckpoint) if it has more than `most_bytes`.
[[nodiscard]] std::string read_text(FileSystem& files, const std::string& path,
                                    bool follows_links,
                                    std::uint64_t most_bytes);

/// Reads and parses DIRECTORY/manifest.json.
[[nodiscard]] Manifest read_manifest(FileSystem& files,
                                     const std::string& directory);

/// Returns, for example, "a, b, c, d, 7 more".
[[nodiscard]] std::string some_of(const std::vector<std::string_view>& names);
/// Names the tensors in bytes [begin, end) of a file for messages: "exp_avg,
/// exp_avg_sq", or "the header" if the header is empty.
[[nodiscard]] std::string tensors_in(const SafetensorsHeader& header,
                                     std::uint64_t begin, std::uint64_t end);

/// A safetensors file for reading. Every chunk that is read is compared with
/// its hash in the manifest. Files of other programs have no hashes. Holds one
/// chunk in memory.
class VerifiedFile {
 public:
  /// Reads and checks the header. Throws Error(kUnavailable), and
  /// Error(kCorruptCheckpoint), which names the path.
  VerifiedFile(FileSystem& files, const std::string& directory,
               const SavedFile& saved);
  /// Opens a file without a manifest, and follows links.
  VerifiedFile(FileSystem& files, const std::string& path);

  [[nodiscard]] const SafetensorsHeader& header() const noexcept {
    return header_;
  }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t bytes_read() const noexcept { return read_; }
  /// Reads bytes [offset, offset + to.size()) of the file. Throws
  /// Error(kCorruptCheckpoint), which names the path, the byte range and its
  /// tensors.
  void read(std::uint64_t offset, std::span<std::byte> to);

  /// Describes bytes [begin, end) in messages. The default is tensors_in().
  using Describe =
      std::function<std::string(std::uint64_t begin, std::uint64_t end)>;
  void describe_by(Describe describe) { describe_ = std::move(describe); }
  /// Frees the memory of the chunk, which is read again if it is needed.
  void forget_chunk() noexcept {
    chunk_ = {};
    chunk_number_ = ~std::uint64_t{0};
  }

 private:
  void read_header(Writer writer);
  [[nodiscard]] std::span<std::byte> chunk_bytes() {
    return std::as_writable_bytes(chunk_.as<std::uint8_t>());
  }
  void read_exactly(std::uint64_t offset, std::span<std::byte> to);
  void read_chunk(std::uint64_t chunk, std::span<std::byte> to);
  void load_chunk(std::uint64_t chunk);

  std::string path_;
  Describe describe_;
  std::unique_ptr<File> file_;
  std::vector<std::uint64_t> hashes_;  // empty if there are none
  std::vector<bool> verified_;
  SafetensorsHeader header_;
  std::uint64_t bytes_ = 0;
  std::uint64_t read_ = 0;
  Buffer chunk_;  // of uint8
  std::uint64_t chunk_number_ = ~std::uint64_t{0};
};

}  // namespace thinwire::checkpoint
