// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/disk/file_system.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "thinwire/checkpoint/options.h"
#include "thinwire/optim/state.h"

namespace thinwire::checkpoint {

/// A file that this rank writes.
struct PlannedFile {
  /// Reads bytes [offset, offset + to.size()) of the header's tensor `tensor`.
  using Read = std::function<void(std::size_t tensor, std::uint64_t offset,
                                  std::span<std::byte> to)>;

  std::string name;
  SafetensorsHeader header;
  Read read;
  std::vector<std::pair<std::string, std::string>> tensors{};  ///< See
                                                               ///< SavedFile.
};

/// A tensor to write: its name, type and shape, and the function that reads its
/// elements.
struct PlannedTensor {
  TensorEntry entry;
  optim::StateArray::Read read;
};
/// Places the tensors in a file. Throws like place_tensors().
[[nodiscard]] PlannedFile planned_file(
    std::string name, const std::vector<PlannedTensor>& tensors,
    Metadata metadata);

/// Destination of a rank's files, and the observer of their chunks.
struct Destination {
  FileSystem& files;
  std::string directory;
  bool durable = true;
  std::function<void(std::uint64_t bytes)> wrote;  ///< Called with the bytes
                                                   ///< written since its last
                                                   ///< call.
};

/// Writes a new file in pieces and hashes them. Its name may be lost in a crash
/// until the directory is synced.
[[nodiscard]] SavedFile write_file(const Destination& to,
                                   const PlannedFile& planned);
[[nodiscard]] SavedFile write_file(const Destination& to,
                                   const Attachment& attachment);

}  // namespace thinwire::checkpoint
