// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "thinwire/config/config.h"

namespace thinwire::train_gpt {

/// The object of a configuration file that belongs to this program.
inline constexpr const char* kOwnObject = "train_gpt";
/// The value of --resume that means the newest checkpoint, or a new run if
/// there is none.
inline constexpr const char* kAutoResume = "auto";

/// The options of a run, with a field for each option that command_line.cpp
/// documents. training_config() sets unset fields.
struct Options {
  std::vector<std::string> data{};
  std::optional<std::string> optimizer{};
  std::int64_t steps = 500;
  std::string out = "out/train_gpt";
  /// Number of ranks that are threads. If unset, the launcher decides, or
  /// THINWIRE_COMM.
  std::optional<int> ranks{};
  std::optional<std::string> save_every{};
  std::optional<std::string> resume{};
  std::uint64_t seed = 1;
  std::vector<std::string> set{};

  std::size_t context = 64;
  std::size_t layers = 4;
  std::size_t width = 128;
  std::size_t heads = 4;
  std::optional<std::int64_t> warmup_steps{};
  std::optional<std::int64_t> validate_every{};
  std::size_t validate_bytes = 64 * 1024;
  bool quiet = false;
  bool resume_fallback = false;
  bool resume_new_data = false;
  std::vector<std::string> save_on{};

  /// The engine's keys of the --config file, if it has any.
  std::optional<config::Config> file{};
  std::vector<config::KeyNote> file_keys{};  ///< Notes on these keys.
};

/// When and where a run saves.
struct Saving {
  /// The root is always a directory, OUT/checkpoints by default.
  config::CheckpointConfig files{};
  /// Signals that save and stop the run.
  std::vector<int> signals{};

  [[nodiscard]] bool is_periodic() const noexcept {
    return files.every_steps > 0 || files.every.count() > 0;
  }
};

/// Names and values.
using Settings = std::vector<std::pair<std::string, std::string>>;

/// The content of a command line.
struct Invocation {
  Options options{};
  Saving saving{};
};

}  // namespace thinwire::train_gpt
