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
  /// The same on all ranks. That of foreign weights has their names, shapes and
  /// types and, if they are loaded, their states.
  Manifest manifest{};
  bool is_foreign = false;  ///< Weights of somebody else, without a manifest.
  bool has_states = false;  ///< A foreign one, with kNamedStates beside them.
};

/// Collective, rank 0 looks. Returns `path` itself, or the complete checkpoints
/// in the directory of a run, newest save_index first. Each one that is cut,
/// missing or altered is left out and gets a note. Throws Error(kUnavailable)
/// if one cannot be read. Weights alone may also come from a safetensors file
/// or a folder of them. A folder with kNamedStates holds weights and states.
/// The result may be empty, and lacks the manifests.
[[nodiscard]] std::vector<Found> find_candidates(
    comm::Communicator& comm, FileSystem& files, const std::string& path,
    What what, std::vector<std::string>& notes);

/// Collective: rank 0 reads the manifest. Throws Error(kCorruptCheckpoint).
[[nodiscard]] Found open_candidate(comm::Communicator& comm, FileSystem& files,
                                   Found found);

/// Collective: returns once every rank sees all files of a checkpoint in full.
/// Rank 0 looks once, and throws Error(kCorruptCheckpoint) if a file is
/// missing. Another rank that sees less, as on a network file system, looks
/// again for as long as kPatience. Then Error(kUnavailable) names the rank, its
/// host and the file.
void await_files(comm::Communicator& comm, FileSystem& files,
                 const Found& found);

/// Local: after `error` in reading them, throws Error(kUnavailable) if one of
/// these files has gone since.
void require_still_there(FileSystem& files, const Found& found,
                         const Error& error);

}  // namespace thinwire::checkpoint
