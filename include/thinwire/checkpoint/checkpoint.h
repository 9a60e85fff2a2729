// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "thinwire/checkpoint/options.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"
#include "thinwire/optim/experts.h"
#include "thinwire/optim/optimizer.h"

namespace thinwire::checkpoint {

/// A tensor beside the trainable parameters: frozen, or a buffer. Rank 0's is
/// written.
struct OtherTensor {
  std::string name;
  std::vector<std::size_t> shape{};
  View values{};
  bool is_bool = false;  ///< `values` are bytes that stand for true and false.
};

/// What a run is made of, as far as a checkpoint is concerned. Everything it
/// points to must outlive the calls, and asynchronous saves nothing.
struct Training {
  comm::Communicator& comm;
  const ParameterLayout& layout;
  /// layout.size() elements, the same on all ranks except in local steps; of
  /// experts on those that hold them.
  View params;
  optim::Optimizer& optimizer;
  std::int64_t step = 0;  ///< Names the checkpoint.
  /// What the caller counts beside the optimizer, equal on all ranks; no
  /// arrays. load() hands it back.
  StateDict scalars{};

  // ---- for whoever reads the checkpoint
  int zero_stage = 0;
  std::string semantics = "corrected";
  std::string config{};  ///< Config::to_json().
  std::vector<OtherTensor> others{};
  /// Tied parameters: another name, and the one it is saved under.
  std::vector<std::pair<std::string, std::string>> aliases{};

  /// Groups of which not all ranks hold the parameters. Every expert has a name
  /// of its own, whichever ranks hold it: any others may hold it at a load.
  std::vector<optim::ExpertGroup> experts{};
};

/// Collective, done on return: writes ROOT/step-<step>, all of it or nothing.
/// Throws on all ranks: Error(kInvalidArgument) where ranks differ in what
/// should be equal, Error(kUnavailable) with path and cause where it cannot be
/// written. Checkpoints that were there stay as they are.
SaveReport save(const Training& training, const std::string& root,
                const Extra& extra = {}, const SaveOptions& options = {});

/// Collective: a checkpoint, a ROOT (its newest complete one), or weights with
/// an optimizer.safetensors. Any number of ranks, any ZeRO stage. Throws on all
/// ranks, and changes nothing: Error(kUnavailable) where there is none or it
/// cannot be read, Error(kCorruptCheckpoint) naming what is damaged or does not
/// fit.
LoadReport load(const Training& training, const std::string& path,
                const LoadOptions& options = {});

/// Collective: as load(), or nothing where there is no complete checkpoint yet:
/// a fresh start.
[[nodiscard]] std::optional<LoadReport> resume(const Training& training,
                                               const std::string& path,
                                               const LoadOptions& options = {});

/// Saves one run again and again: keeps a communicator of its own, the lock of
/// the directory and the memory of asynchronous saves.
class Saver {
 public:
  /// Collective at the first save().
  explicit Saver(comm::Communicator& comm);
  /// Waits for a save under way.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// As save(). Asynchronous: returns once this rank's share is copied; what
  /// then fails is thrown by the next save() or wait(), on all ranks.
  SaveReport save(const Training& training, const std::string& root,
                  const Extra& extra = {}, const SaveOptions& options = {});
  /// Collective: until the save under way is done.
  void wait();
  [[nodiscard]] bool is_saving() const;
  /// Frees the memory of asynchronous saves.
  void release_buffers();
  /// The checkpoint that the run went on from: never removed by retention until
  /// two newer ones are complete.
  void set_loaded_from(const LoadReport& report);
  /// Collective: which ones stay; see Retention.
  void retain(const std::string& root, const struct Retention& retention);

 private:
  friend SaveReport save(const Training& training, const std::string& root,
                         const Extra& extra, const SaveOptions& options);
  void go_on_with_run_in(const std::string& root);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Which checkpoints of a run stay when a newer one is complete.
struct Retention {
  std::int64_t keep_last = 0;   ///< Newest ones; 0: all.
  std::int64_t keep_every = 0;  ///< And those of every N-th step; 0: none.
};

}  // namespace thinwire::checkpoint
