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

/// What becomes of 0/1 Adam's steps since its last exchange.
enum class LocalSteps {
  kAsIs,         ///< Each rank's momentum and updates are written.
  kNextSync,     ///< A Checkpointer's save waits for the next exchange; save()
                 ///< itself does as with kAsIs.
  kSynchronize,  ///< An exchange now, as before an evaluation.
};

/// What becomes of the residuals of compressed exchanges and, in local steps,
/// of what 0/1 Adam's ranks have each for themselves.
enum class Residuals {
  kPerRank,  ///< Each rank's is written: 4n bytes per rank.
  kMean,     ///< Their mean: 4n bytes in all, but no bit-equal continuation.
};

/// Where the ranks' files go.
enum class Storage {
  kShared,     ///< All ranks see the same directory.
  kNodeLocal,  ///< One for each host: to load, copy them into one first.
};

/// A file that is written beside the checkpoint's own: config.json, say.
struct Attachment {
  std::string name;     ///< [A-Za-z0-9][A-Za-z0-9._-]*, at most 128 characters.
  std::string bytes{};  ///< At most 16 MiB.
};

/// Bytes written so far, of all; called on rank 0, by the thread that writes:
/// in an asynchronous save another one than the caller's. Rank 0 knows its own
/// bytes only, until all are done.
using Progress = std::function<void(std::uint64_t bytes, std::uint64_t total)>;

struct SaveOptions {
  /// save() returns once this rank's share has been copied; a thread writes it.
  bool asynchronous = false;
  /// false: nothing is flushed to the disk. For tests and scratch disks.
  bool durable = true;
  /// Compare what should be equal on all ranks before it is written.
  bool check_replicas = true;
  LocalSteps local_steps = LocalSteps::kAsIs;
  Residuals residuals = Residuals::kPerRank;
  Storage storage = Storage::kShared;
  /// false: frozen parameters and buffers are left out of the weights.
  bool frozen = true;
  std::vector<Attachment> attachments{};
  Progress progress{};
};

/// What is loaded.
enum class What {
  kAll,
  kWeights,  ///< Parameters only; also of a safetensors file or a Hugging Face
             ///< folder. Optimizer states stay as they are.
};

struct LoadOptions {
  What what = What::kAll;
  /// Where the newest checkpoint is damaged, go to the one before it.
  bool fall_back = false;
  /// Load what was saved in fp32 into states of 16 bits.
  bool allow_rounding = false;
  /// What all ranks need is read once, in shares, and exchanged.
  bool share_reads = true;
  /// Old names of parameters to new ones.
  std::vector<std::pair<std::string, std::string>> rename{};
  /// Parameters, or globs with *, that the checkpoint need not have ...
  std::vector<std::string> allow_missing{};
  /// ... and that it may have and the model does not.
  std::vector<std::string> ignore{};
  /// Local; called on every rank with what a load of this checkpoint will
  /// report, after everything was checked and before anything changes. If it
  /// throws an Error on one rank, the load fails on all ranks, and nothing
  /// changes. Empty: accepts every checkpoint.
  std::function<void(const struct LoadReport& found)> accept{};
};

/// What the application adds: scalars and arrays.
struct Extra {
  StateDict common;  ///< Equal on all ranks.
  StateDict own;     ///< Of this rank.
};

/// What a save did. The same on all ranks, but for the times.
struct SaveReport {
  std::string path;  ///< Of the checkpoint.
  std::int64_t step = 0;
  std::uint64_t bytes = 0;    ///< Of all ranks' files.
  double seconds = 0;         ///< That the caller was held.
  double waited_seconds = 0;  ///< Of them, for a save before.
};

/// What a load found.
struct LoadReport {
  std::string path;
  std::int64_t step = 0;
  std::string run{};  ///< The same for all checkpoints of a run.
  int world = 0;      ///< Ranks that saved it.
  std::string optimizer{}, precision{};
  std::string config{};  ///< Training::config of the run that saved it.
  StateDict scalars;     ///< Training::scalars.
  Extra extra;           ///< `own` is empty on ranks that were not there.
  std::vector<StateDict> own_of_ranks;  ///< All that were saved.
  std::vector<std::string> notes;       ///< What changed, a line each.
  double seconds = 0;
  std::uint64_t bytes = 0;  ///< Read by all ranks.
};

}  // namespace thinwire::checkpoint
