// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/disk/file_system.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/read/verified_file.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"

namespace thinwire::checkpoint {

/// Reads named weights from a checkpoint (whose bytes are all verified), a
/// .safetensors file, or a Hugging Face folder. Such a folder has
/// model.safetensors, or the files that model.safetensors.index.json lists. In
/// the last two cases links are followed. Local. Only one thread may use it at
/// a time.
class Weights {
 public:
  /// Opens all files and reads their headers. Throws Error(kUnavailable) if the
  /// path has no weights, and Error(kCorruptCheckpoint), which names the file.
  Weights(FileSystem& files, const std::string& path);
  /// Opens a checkpoint whose manifest has been read already.
  Weights(FileSystem& files, const std::string& directory,
          const Manifest& manifest);

  /// Returns all names, sorted, including aliases of a checkpoint.
  [[nodiscard]] std::vector<std::string> names() const;
  /// Returns the shape and type, or null if the name does not exist. For an
  /// alias, returns the tensor that it stands for, with that tensor's name.
  [[nodiscard]] const TensorEntry* find(std::string_view name) const noexcept;
  /// Reads all elements. `to` must have their number and dtype (kUInt8 for
  /// BOOL).
  void read(std::string_view name, View to);
  /// Reads elements `range` of a tensor.
  void read(std::string_view name, Range range, View to);

  /// Frees memory that the next read() may need again.
  void forget_chunk() noexcept;
  /// Returns the bytes read from all files so far.
  [[nodiscard]] std::uint64_t bytes_read() const noexcept;

 private:
  struct Place {
    std::size_t file = 0;
    const TensorEntry* tensor = nullptr;
  };
  void open_folder(FileSystem& files, const std::string& path);
  void open_checkpoint(FileSystem& files, const std::string& directory,
                       const Manifest& manifest);
  void add(std::unique_ptr<VerifiedFile> file);

  std::vector<std::unique_ptr<VerifiedFile>> files_;
  std::map<std::string, Place, std::less<>> places_;
  std::size_t last_file_ = 0;
};

}  // namespace thinwire::checkpoint
