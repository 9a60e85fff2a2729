// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "thinwire/config/config.h"

namespace CLI {
class App;
}

namespace thinwire::train_gpt {

/// Value of --resume that means the newest checkpoint there is, or none.
inline constexpr const char* kAutoResume = "auto";

/// When a run is saved, where, and what it goes on from.
struct Saving {
  /// Its root is a directory, whoever named it.
  config::CheckpointConfig files{};
  /// Empty: from the beginning; kAutoResume; or a checkpoint, or a directory
  /// of some.
  std::string resume{};
  bool resume_fallback = false;
  bool resume_new_data = false;
  /// Signals upon which the run is saved and stopped.
  std::vector<int> signals{};

  [[nodiscard]] bool is_periodic() const noexcept {
    return files.every_steps > 0 || files.every.count() > 0;
  }
};

/// What all ranks must have in common.
[[nodiscard]] std::string describe(const Saving& saving);

/// Flags of saving and resuming.
class SavingFlags {
 public:
  /// Adds them to `app`, which must outlive this object.
  explicit SavingFlags(CLI::App& app);
  SavingFlags(const SavingFlags&) = delete;
  SavingFlags& operator=(const SavingFlags&) = delete;

  /// After they were parsed: what they ask for, and `file` where they do not
  /// say; checkpoints are in OUT/checkpoints where nothing else is named. Under
  /// mpirun SIGTERM and SIGINT end a run as ever, elsewhere they save it too
  /// where checkpoints are asked for. Throws UsageError.
  [[nodiscard]] Saving resolve(const config::CheckpointConfig& file,
                               const std::string& out) const;

 private:
  [[nodiscard]] bool is_given(const char* flag) const;
  void read_every(config::CheckpointConfig& files) const;
  [[nodiscard]] std::vector<int> signals(bool is_asked_for) const;

  CLI::App& app_;
  // Text until all flags are there.
  std::string save_every_;
  std::int64_t keep_last_ = 0;
  std::int64_t keep_every_ = 0;
  std::string checkpoints_;
  bool save_sync_ = false;
  std::string resume_;
  bool resume_fallback_ = false;
  bool resume_new_data_ = false;
  std::string save_on_;
};

}  // namespace thinwire::train_gpt
