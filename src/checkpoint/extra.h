// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "checkpoint/disk/file_system.h"
#include "checkpoint/format/manifest.h"
#include "thinwire/core/state_dict.h"

namespace thinwire::checkpoint {

/// Before the names of the application's arrays: of all ranks, in rank 0's file
/// of states, and of one rank, in its own.
inline constexpr const char* kExtra = "extra/";
inline constexpr const char* kExtraOfRank = "extra_of_rank/";

/// What the application added to a checkpoint. Local. Throws
/// Error(kUnavailable), Error(kCorruptCheckpoint).
[[nodiscard]] StateDict read_extra(FileSystem& files,
                                   const std::string& directory,
                                   const Manifest& manifest);
/// The same of one of the ranks that saved it.
[[nodiscard]] StateDict read_extra_of_rank(FileSystem& files,
                                           const std::string& directory,
                                           const Manifest& manifest, int rank);

}  // namespace thinwire::checkpoint
