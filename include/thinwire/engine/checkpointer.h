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

/// Times of a Checkpointer's saves, and the checkpoints that it keeps. Equal on
/// all ranks.
struct CheckpointerOptions {
  std::string root;              ///< Directory of the run's checkpoints.
  std::int64_t every_steps = 0;  ///< Applied steps per save; 0 for none.
  /// Time per save by rank 0's clock, accurate to a step or about a second; 0
  /// for none by time.
  std::chrono::milliseconds every{0};
  std::int64_t keep_last = 2;   ///< Newest checkpoints to keep; 0 for all.
  std::int64_t keep_every = 0;  ///< Also keep every N-th step; 0 for none.
  /// Whether training continues during periodic saves. It never does during the
  /// last save. Must be false if the transport has no groups.
  bool asynchronous = true;
  /// Signals that save and stop the run, for example SIGUSR1. While a
  /// Checkpointer exists, the first signal only sets a flag, and a second one
  /// has its previous effect.
  std::vector<int> signals{};
  /// Options of every save, except `asynchronous` and `local_steps`.
  checkpoint::SaveOptions save{};
  /// Used by periodic saves. Saves before a stop, and last ones, use kAsIs.
  checkpoint::LocalSteps local_steps = checkpoint::LocalSteps::kNextSync;

  /// Checks the options. Throws Error(kInvalidArgument) naming the member, its
  /// range and its value.
  void validate() const;
};

/// Returns the options of a configuration. Throws Error(kInvalidArgument) if it
/// names no root.
[[nodiscard]] CheckpointerOptions checkpointer_options(
    const config::CheckpointConfig& config);

/// Saves a run when a save is due, removes old checkpoints, and stops the run
/// on a signal:
///   Checkpointer checkpointer(engine, {.root = "out/checkpoints",
///                                      .every_steps = 500,
///                                      .signals = {SIGUSR1}});
///   while (more to do && !checkpointer.stop_requested()) {
///     ...
///     checkpointer.after_step(engine.step(), [&] { return extra; });
///   }
///   checkpointer.finish([&] { return extra; });
/// Each rank has one, used by one thread. Ranks check signals and the clock
/// together, at steps that they agree on: one step apart, or up to 100 steps
/// within about a second. A signal to one rank suffices, and all ranks stop
/// after the same step.
class Checkpointer {
 public:
  /// Returns the data to save in addition to the engine's. Every rank calls it
  /// when it saves, so it may communicate.
  using MakeExtra = std::function<checkpoint::Extra()>;

  /// Counts of the saves so far.
  struct Totals {
    std::int64_t saves = 0;   ///< Complete saves.
    std::int64_t failed = 0;  ///< Periodic saves that failed.
    double held_seconds = 0;  ///< Time that training waited for them.
    std::string newest{};     ///< The newest complete checkpoint.
  };

  /// Starts to handle the signals. `engine` must outlive this object. Throws
  /// like CheckpointerOptions::validate and Saver::require_asynchronous, and
  /// Error(kUnavailable) if a signal cannot be caught. Collective.
  Checkpointer(Engine& engine, CheckpointerOptions options);
  /// Waits for a pending save.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  /// Saves if that is due. Collective, after every step; inside a window of
  /// accumulation it does nothing. If a periodic save fails with kUnavailable,
  /// returns the error's message, logs it (core/log.h), and training continues;
  /// other errors are thrown. The message of an asynchronous save may come in a
  /// later step. Otherwise returns an empty text. Before a stop it saves the
  /// run synchronously; if that fails, it throws the error of Engine::save.
  std::string after_step(const EngineReport& report,
                         const MakeExtra& extra = {});

  /// Requests a stop at the next agreement, like a signal. Local.
  void request_stop() noexcept;
  /// Returns whether the run is saved and must end; the same on all ranks.
  [[nodiscard]] bool stop_requested() const noexcept;

  /// Waits for the pending save and, unless the newest checkpoint is of this
  /// step, saves. Collective, at the end of a run. Throws the error of
  /// Engine::save.
  void finish(const MakeExtra& extra = {});

  [[nodiscard]] const Totals& totals() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::engine
