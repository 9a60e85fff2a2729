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

/// Reads named weights of a checkpoint (every byte verified), a .safetensors
/// file, or a Hugging Face folder. Such a folder has model.safetensors, or the
/// files that model.safetensors.index.json lists. Links are followed in the
/// last two. Local. Not for several threads at once.
class Weights {
 public:
  /// Opens all files and reads their headers. Throws Error(kUnavailable) where
  /// there is nothing of the kind, Error(kCorruptCheckpoint) naming the file.
  Weights(FileSystem& files, const std::string& path);
  /// Opens a checkpoint whose manifest was read already.
  Weights(FileSystem& files, const std::string& directory,
          const Manifest& manifest);

  /// All names, sorted; a checkpoint's aliases too.
  [[nodiscard]] std::vector<std::string> names() const;
  /// Shape and type; null if there is none of this name. An alias gives what it
  /// stands for, whose name it has.
  [[nodiscard]] const TensorEntry* find(std::string_view name) const noexcept;
  /// All elements; `to` must have their number and dtype (kUInt8 for BOOL).
  void read(std::string_view name, View to);
  /// Elements `range` of it.
  void read(std::string_view name, Range range, View to);

  /// Gives memory back that the next read() may need again.
  void forget_chunk() noexcept;
  /// From all files so far.
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
