// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "checkpoint/disk/file_system.h"
#include "checkpoint/found.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint {

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
