// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/checkpoint/options.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"
#include "thinwire/optim/experts.h"
#include "thinwire/optim/optimizer.h"

namespace thinwire::checkpoint {

/// A frozen parameter or a buffer. Rank 0's values are saved.
struct OtherTensor {
  std::string name;
  std::vector<std::size_t> shape{};
  View values{};
  /// Name of the dtype in safetensors files, if DType has none: "BOOL", "I8",
  /// "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16", "U16", "U32",
  /// "U64" or "C64". `values` then have a DType of the same size, kFloat16 for
  /// 2 bytes. Must be a string literal.
  std::string_view type{};
};

/// The parts of a run that a checkpoint covers. Everything it points to must
/// outlive the calls. An asynchronous save does not use it after the return.
struct Training {
  comm::Communicator& comm;
  const ParameterLayout& layout;
  /// Flat array of layout.size() elements, equal on all ranks except during
  /// local steps. Experts are equal on the ranks that hold them.
  View params;
  optim::Optimizer& optimizer;
  std::int64_t step = 0;  ///< Step in the checkpoint's name.
  /// Additional counters of the caller, equal on all ranks, without arrays.
  /// load() returns them.
  StateDict scalars{};

  // ---- for readers of the checkpoint
  int zero_stage = 0;
  std::string semantics = "corrected";
  std::string config{};  ///< Config::to_json().
  std::vector<OtherTensor> others{};
  /// Tied parameters: another name, and the name under which it is saved.
  std::vector<std::pair<std::string, std::string>> aliases{};

  /// Groups whose parameters only some ranks hold. Every expert has a unique
  /// name that does not depend on its ranks; after a load other ranks may hold
  /// it.
  std::vector<optim::ExpertGroup> experts{};
};

/// Writes ROOT/step-<step>, completely or not at all. Collective and blocking.
/// Throws on all ranks: Error(kInvalidArgument) if values differ that should be
/// equal on all ranks, Error(kUnavailable) with path and cause if it cannot be
/// written. Earlier checkpoints do not change.
SaveReport save(const Training& training, const std::string& root,
                const Extra& extra = {}, const SaveOptions& options = {});

/// Loads a checkpoint, or the newest complete one in a ROOT. Also loads a
/// folder of weights with an `optimizer.safetensors`. Works on any number of
/// ranks and at any ZeRO stage. Collective. On an error, all ranks throw and
/// nothing changes. Error(kUnavailable) means that no checkpoint is readable.
/// Error(kCorruptCheckpoint) names the part that is damaged or does not fit.
/// Error(kInvalidArgument) names the command that converts a checkpoint of
/// DeepSpeed.
LoadReport load(const Training& training, const std::string& path,
                const LoadOptions& options = {});

/// Loads like load(), or returns nothing if there is no checkpoint yet, as at a
/// fresh start. Files of an unfinished save do not count as a checkpoint, but
/// DeepSpeed's do. Collective.
[[nodiscard]] std::optional<LoadReport> resume(const Training& training,
                                               const std::string& path,
                                               const LoadOptions& options = {});

/// Saves one run repeatedly. It keeps a separate communicator (if the transport
/// has groups), the lock of the directory and the memory of asynchronous saves.
class Saver {
 public:
  /// Creates a saver. Local; the first save() does the collective part.
  explicit Saver(comm::Communicator& comm);
  /// Waits for a pending save.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Saves like checkpoint::save(). An asynchronous save returns once this
  /// rank's share is copied. If it fails later, the next save() or wait()
  /// throws, on all ranks.
  SaveReport save(const Training& training, const std::string& root,
                  const Extra& extra = {}, const SaveOptions& options = {});
  /// Throws Error(kInvalidArgument) if no save can be asynchronous, because the
  /// transport has no groups. Collective.
  void require_asynchronous();
  /// Blocks until the pending save is done. Collective.
  void wait();
  [[nodiscard]] bool is_saving() const;
  /// Frees the memory of asynchronous saves.
  void release_buffers();
  /// Sets the checkpoint from which the run continues. Retention does not
  /// remove it until two newer ones are complete.
  void set_loaded_from(const LoadReport& report);
  /// Removes checkpoints of this run that `retention` does not keep.
  /// Collective.
  void retain(const std::string& root, const struct Retention& retention);

 private:
  friend SaveReport save(const Training& training, const std::string& root,
                         const Extra& extra, const SaveOptions& options);
  void go_on_with_run_in(const std::string& root);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Rule for keeping a run's checkpoints once a newer one is complete.
struct Retention {
  std::int64_t keep_last = 0;   ///< Newest checkpoints to keep; 0 for all.
  std::int64_t keep_every = 0;  ///< Also keep every N-th step; 0 for none.
};

}  // namespace thinwire::checkpoint
