// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "thinwire/core/state_dict.h"

namespace thinwire::checkpoint {

/// Handling of local steps (0/1 Adam, outer loop) since the last exchange.
enum class LocalSteps {
  kAsIs,         ///< Writes each rank's momentum and updates.
  kNextSync,     ///< A Checkpointer's save waits for the next exchange; save()
                 ///< itself acts as with kAsIs.
  kSynchronize,  ///< Exchanges now, as before an evaluation.
};

/// Location of the ranks' files.
enum class Storage {
  kShared,     ///< All ranks see the same directory.
  kNodeLocal,  ///< One directory per host, to be merged before a load.
};

/// An additional file in the checkpoint, for example config.json.
struct Attachment {
  std::string name;     ///< [A-Za-z0-9][A-Za-z0-9._-]*, at most 128 characters.
  std::string bytes{};  ///< At most 16 MiB.
};

/// Receives the number of bytes written so far, and the total; in verify(), of
/// bytes read. In a save the writing thread of rank 0 calls it, which in an
/// asynchronous save is not the caller's thread. Until all ranks are done, rank
/// 0 knows only its own bytes.
using Progress = std::function<void(std::uint64_t bytes, std::uint64_t total)>;

struct SaveOptions {
  /// Whether save() returns once this rank's share has been copied; a thread
  /// then writes it. Needs a transport with groups (comm::Transport::split).
  bool asynchronous = false;
  /// Whether data is flushed to the disk. Turn it off for tests and scratch
  /// disks.
  bool durable = true;
  /// Whether values that should be equal on all ranks are compared before
  /// writing.
  bool check_replicas = true;
  LocalSteps local_steps = LocalSteps::kAsIs;
  Storage storage = Storage::kShared;
  /// Whether frozen parameters and buffers are written with the weights.
  bool frozen = true;
  std::vector<Attachment> attachments{};
  Progress progress{};
};

/// Parts of a checkpoint to load.
enum class What {
  kAll,
  kWeights,  ///< Parameters only, also from a safetensors file or a Hugging
             ///< Face folder. Optimizer states stay unchanged.
};

struct LoadOptions {
  What what = What::kAll;
  /// Whether to load the checkpoint before the newest one if that is damaged.
  bool fall_back = false;
  /// Whether states saved in fp32 may be loaded into 16-bit states.
  bool allow_rounding = false;
  /// Whether data that all ranks need is read once, in shares, and exchanged.
  bool share_reads = true;
  /// Whether missing and unexpected parameters are errors. Otherwise one
  /// warning names them. If no name fits, this is always an error.
  bool strict = true;
  /// Pairs of an old and a new name of a parameter, frozen parameter or buffer.
  /// Unnecessary for names that differ only by "_orig_mod." or a leading
  /// "module.", which torch.compile and wrappers add.
  std::vector<std::pair<std::string, std::string>> rename{};
  /// Parameters, or globs with *, that the checkpoint may lack.
  std::vector<std::string> allow_missing{};
  /// Parameters, or globs with *, that the checkpoint may have and the model
  /// lacks.
  std::vector<std::string> ignore{};
  /// Decides whether a checkpoint is loaded. Local; called on every rank with
  /// the load's report, after all checks and before anything changes. If it
  /// throws an Error on one rank, the load fails on all ranks, and nothing
  /// changes. An empty function accepts every checkpoint.
  std::function<void(const struct LoadReport& found)> accept{};
};

/// Scalars and arrays that the application adds.
struct Extra {
  StateDict common;  ///< Equal on all ranks.
  StateDict own;     ///< Values of this rank.
};

/// Result of a save. Equal on all ranks, except the times.
struct SaveReport {
  std::string path;  ///< Path of the checkpoint.
  std::int64_t step = 0;
  std::uint64_t bytes = 0;    ///< Size of all ranks' files.
  double seconds = 0;         ///< Time that the caller was blocked.
  double waited_seconds = 0;  ///< Part spent waiting for an earlier save.
};

/// Result of a load.
struct LoadReport {
  std::string path;
  std::int64_t step = 0;
  std::string run{};  ///< Id of the run, equal in all its checkpoints.
  int world = 0;      ///< Number of ranks that saved it.
  std::string optimizer{}, precision{};
  std::string config{};  ///< Training::config of the run that saved it.
  StateDict scalars;     ///< Training::scalars.
  Extra extra;           ///< `own` is empty on ranks that did not save.
  std::vector<StateDict> own_of_ranks;  ///< Values of all ranks that saved.
  std::vector<std::string> notes;       ///< One line for each change.
  double seconds = 0;
  std::uint64_t bytes = 0;  ///< Bytes read by all ranks.
};

}  // namespace thinwire::checkpoint
