// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "examples/train_gpt/model.h"
#include "examples/train_gpt/options/options.h"
#include "examples/train_gpt/progress.h"
#include "examples/train_gpt/resume.h"
#include "examples/train_gpt/run_folder.h"
#include "examples/train_gpt/text_data.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/engine/checkpointer.h"

namespace thinwire::train_gpt {

/// How a rank's part of a run has ended, unless it threw.
enum class Ending {
  kDone,
  kInterrupted,      ///< By a signal, which rank 0's thread reports.
  kFailedElsewhere,  ///< Another rank reports why.
  kStopped,          ///< By a signal; its checkpoint is complete.
};

/// One rank's part of a run. trainer.cpp takes its steps, trainer_saving.cpp
/// saves and resumes it, trainer_ending.cpp summarizes it.
class Trainer {
 public:
  Trainer(const Invocation& asked, comm::Communicator& comm);

  /// Throws if the run cannot begin. Local.
  void prepare();
  [[nodiscard]] Ending run();

 private:
  [[nodiscard]] bool is_first() const { return comm_.rank() == 0; }
  [[nodiscard]] std::int64_t sequences_per_backward() const {
    return static_cast<std::int64_t>(shard_.world_size * shard_.sequences);
  }
  [[nodiscard]] std::string config_text() const;
  [[nodiscard]] bool begin();
  engine::EngineReport step(std::int64_t step);
  void record(const engine::EngineReport& report, double loss, double seconds);
  [[nodiscard]] Json telemetry_of(const engine::EngineReport& report);
  void synchronize();
  void share_losses();
  [[nodiscard]] double validate();
  [[nodiscard]] bool is_validated(std::int64_t step) const;
  [[nodiscard]] bool take_steps();
  [[nodiscard]] std::string checksum_of_masters();

  // ---- trainer_saving.cpp
  [[nodiscard]] bool will_resume();
  [[nodiscard]] bool resume();
  void warn_of_other_runs() const;
  [[nodiscard]] Position position() const;
  [[nodiscard]] checkpoint::Extra extra();
  [[nodiscard]] bool all_or_none(const std::function<void()>& body);
  [[nodiscard]] bool save_last();

  // ---- trainer_ending.cpp
  void tell_memory() const;
  void tell_saved();
  Json summarize(const Json& more);
  void finish(const std::string& params_checksum);
  [[nodiscard]] std::int64_t stop(std::string_view signal);

  const Options& options_;
  const Saving& saving_;
  comm::Communicator& comm_;
  const config::Config config_;
  const Settings settings_;
  const config::BatchSizes batch_;
  const Shard shard_;
  Model model_;
  std::optional<TextData> data_;
  std::optional<RunWriter> writer_;  // Only on rank 0.
  Progress progress_;
  std::vector<StepRow> unshared_;  // Rows whose losses are this rank's own.
  double newest_loss_ = 0;         // Mean over ranks.
  std::uint64_t data_hash_ = 0;
  std::int64_t newest_step_ = 0;    // On this rank.
  std::int64_t next_sequence_ = 0;  // Over all ranks.
  bool is_resumed_ = false;
  Position resumed_{};  // where the run began, if it was resumed
  std::optional<engine::Checkpointer> checkpointer_;
};

/// Trains one rank of `comm`. Rank 0 writes the run's folder, its progress to
/// stderr and its results to stdout. Collective.
///
/// Returns kFailedElsewhere if another rank has thrown AgreedFailure, and all
/// end. Throws Error(kCommFailure) if a rank is lost.
[[nodiscard]] Ending train(const Invocation& asked, comm::Communicator& comm);

}  // namespace thinwire::train_gpt
