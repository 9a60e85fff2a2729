// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "thinwire/checkpoint/options.h"
#include "thinwire/config/config.h"
#include "thinwire/engine/engine.h"

namespace thinwire::engine {

/// When a Checkpointer saves, and what it keeps. Equal on all ranks.
struct CheckpointerOptions {
  std::string root;              ///< Directory of the run's checkpoints.
  std::int64_t every_steps = 0;  ///< Applied ones; 0: not by steps.
  /// By rank 0's clock, within about a second; 0: not by time.
  std::chrono::milliseconds every{0};
  std::int64_t keep_last = 2;   ///< Newest ones that stay; 0: all.
  std::int64_t keep_every = 0;  ///< And those of every N-th step; 0: none.
  /// Periodic saves go on while training does; the last one never does.
  bool asynchronous = true;
  /// Signals upon which the run is to be saved and stopped, as SIGUSR1. While a
  /// Checkpointer lives they set a flag and do nothing else; a second one does
  /// what it did before.
  std::vector<int> signals{};
  /// For every save, but `asynchronous` and `local_steps`.
  checkpoint::SaveOptions save{};
  /// Of periodic saves. Those before a stop, and last ones, are kAsIs.
  checkpoint::LocalSteps local_steps = checkpoint::LocalSteps::kNextSync;

  /// Throws Error(kInvalidArgument) naming the member, its range and its value.
  void validate() const;
};

/// Those of a configuration. Throws Error(kInvalidArgument) if it names no
/// root.
[[nodiscard]] CheckpointerOptions checkpointer_options(
    const config::CheckpointConfig& config);

/// Saves a run when that is due, removes what is no longer to be kept, and
/// stops it on a signal:
///
///   Checkpointer checkpointer(engine, {.root = "out/checkpoints",
///                                      .every_steps = 500,
///                                      .signals = {SIGUSR1}});
///   while (more to do && !checkpointer.stop_requested()) {
///     ...
///     checkpointer.after_step(engine.step(), [&] { return extra; });
///   }
///   checkpointer.finish([&] { return extra; });
///
/// One per rank, of one thread. Signals and the clock are looked at together,
/// at steps that ranks choose together and that are about a second apart: one
/// rank's signal is enough, and all stop after the same step.
class Checkpointer {
 public:
  /// What save() is handed besides the engine; called on every rank when it
  /// saves, so that it may communicate.
  using MakeExtra = std::function<checkpoint::Extra()>;

  /// What has been saved so far.
  struct Totals {
    std::int64_t saves = 0;   ///< Complete ones.
    std::int64_t failed = 0;  ///< Periodic ones that failed.
    double held_seconds = 0;  ///< That training waited for them.
    std::string newest{};     ///< The newest complete one.
  };

  /// Local. `engine` must outlive this object. Throws as
  /// CheckpointerOptions::validate.
  Checkpointer(Engine& engine, CheckpointerOptions options);
  /// Waits for a save under way.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  /// Collective, after every step; inside a window of accumulation it does
  /// nothing. A periodic save that fails is a line of the log (core/log.h), and
  /// training goes on. Before a stop the run is saved as it is, done on return;
  /// where that fails, it throws what Engine::save threw.
  void after_step(const EngineReport& report, const MakeExtra& extra = {});

  /// Local: asks for what a signal asks for, at the next agreement.
  void request_stop() noexcept;
  /// The same on all ranks: the run is saved, and is to end.
  [[nodiscard]] bool stop_requested() const noexcept;

  /// Collective, at the end of a run: waits for the save under way and, unless
  /// the newest checkpoint is of this step, saves. Throws what Engine::save
  /// threw.
  void finish(const MakeExtra& extra = {});

  [[nodiscard]] const Totals& totals() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::engine
