// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "checkpoint/disk/file_system.h"
#include "checkpoint/format/manifest.h"
#include "thinwire/checkpoint/options.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint {

/// A checkpoint that may be loaded.
struct Found {
  std::string path;
  /// Equal on all ranks. For foreign weights it has their names, shapes and
  /// types, and their states if they are loaded.
  Manifest manifest{};
  bool is_foreign = false;  ///< Whether it holds weights of another program,
                            ///< without a manifest.
  bool has_states = false;  ///< Whether foreign weights have states, in a file
                            ///< kNamedStates.
};

/// Returns `path` itself, or the complete checkpoints in the directory of a
/// run, newest save_index first. A truncated, missing or altered checkpoint is
/// left out and gets a note. Throws Error(kUnavailable) if one cannot be read.
/// Weights alone may also come from a safetensors file or a folder of them. A
/// folder with kNamedStates holds weights and states. The result may be empty,
/// and its manifests are not set. Collective; only rank 0 reads.
[[nodiscard]] std::vector<Found> find_candidates(
    comm::Communicator& comm, FileSystem& files, const std::string& path,
    What what, std::vector<std::string>& notes);

/// Reads the manifest on rank 0. Throws Error(kCorruptCheckpoint). Collective.
[[nodiscard]] Found open_candidate(comm::Communicator& comm, FileSystem& files,
                                   Found found);

/// Returns once every rank sees all files of a checkpoint completely. Rank 0
/// looks once, and throws Error(kCorruptCheckpoint) if a file is missing. On a
/// network file system other ranks may see the files later, so they look again
/// for up to kPatience. After that Error(kUnavailable) names the rank, its host
/// and the file. Collective.
void await_files(comm::Communicator& comm, FileSystem& files,
                 const Found& found);

/// Called after `error` in reading the files. Throws Error(kUnavailable) if one
/// of them no longer exists. Local.
void require_still_there(FileSystem& files, const Found& found,
                         const Error& error);

}  // namespace thinwire::checkpoint
