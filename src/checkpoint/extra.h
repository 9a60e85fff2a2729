// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "checkpoint/disk/file_system.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/read/saved_arrays.h"
#include "thinwire/core/state_dict.h"

namespace thinwire::checkpoint {

/// Before the names of the application's arrays: of all ranks, in rank 0's file
/// of states, and of one rank, in its own.
inline constexpr const char* kExtra = "extra/";
inline constexpr const char* kExtraOfRank = "extra_of_rank/";

/// Reads the data that the application added to a checkpoint. Local. Opens no
/// file that `arrays` has open. All arguments must outlive this. Throws
/// Error(kUnavailable), Error(kCorruptCheckpoint).
class ExtraReader {
 public:
  ExtraReader(FileSystem& files, const std::string& directory,
              const Manifest& manifest, SavedArrays& arrays)
      : files_(files),
        directory_(directory),
        manifest_(manifest),
        arrays_(arrays) {}

  [[nodiscard]] StateDict common();
  /// Returns the data of one of the ranks that saved.
  [[nodiscard]] StateDict of_rank(int rank);

 private:
  void add_tensors(int rank, std::string_view prefix, StateDict& to);

  FileSystem& files_;
  const std::string& directory_;
  const Manifest& manifest_;
  SavedArrays& arrays_;
};

}  // namespace thinwire::checkpoint
