// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "examples/train_gpt/options/options.h"
#include "thinwire/engine/telemetry.h"

namespace thinwire::train_gpt {

/// Keys keep their order, which is for readers.
using Json = nlohmann::ordered_json;

/// One training step: a line of metrics.jsonl.
struct StepRow {
  std::int64_t step = 0;
  double loss = 0;      ///< Nats per byte, mean over ranks, before the update.
  std::string phase{};  ///< "exact", "compressed", "local".
  std::uint64_t tokens = 0;      ///< Bytes predicted, over all ranks.
  std::uint64_t bytes_sent = 0;  ///< Bytes that the optimizer sent on rank 0.
  double seconds = 0;            ///< Time of the whole step.
  // Parts of `seconds`; the rest is forward and backward.
  double wait_seconds = 0;    ///< Waiting for other ranks.
  double update_seconds = 0;  ///< Time of the optimizer, without waiting.
  /// Telemetry of the engine and other values. The fields above take precedence
  /// over equal keys. Empty if the row was read from a file.
  Json more = Json::object();
};

/// A validation after a step: another line of metrics.jsonl.
struct ValidationRow {
  std::int64_t step = 0;
  double val_loss = 0;  ///< Nats per byte.
};

/// Sums over steps, and the newest validation.
struct Totals {
  std::uint64_t bytes_sent = 0;
  double seconds = 0;
  double tokens = 0;
  std::optional<double> val_loss{};

  void add(const StepRow& row);
};

/// Returns the content of summary.json with all its keys, and the values that
/// follow from `totals`.
[[nodiscard]] Json summary_of(const Totals& totals);

/// Returns the text of config.json, from which --config repeats the run.
/// `engine` is the engine's configuration as JSON, with its defaults.
[[nodiscard]] std::string config_text(const Settings& settings,
                                      const std::vector<std::string>& data,
                                      const std::string& engine);

/// Writes a run's folder while the run lasts. A failure to write throws
/// Error(kUnavailable) naming the file. If the disk is full, a line of
/// metrics.jsonl is dropped with a warning (engine::LineFile).
class RunWriter {
 public:
  /// Creates the folder and locks it as long as this object exists. The lock is
  /// that of an open file (flock on FOLDER/.lock), so it ends with the process.
  /// Throws Error(kUnavailable) naming the process that holds it.
  explicit RunWriter(std::filesystem::path folder);
  ~RunWriter();
  RunWriter(const RunWriter&) = delete;
  RunWriter& operator=(const RunWriter&) = delete;

  /// Begins with an empty metrics.jsonl and removes results of an earlier run.
  /// `config` is the text of config.json.
  void begin(const std::string& config);
  /// Begins like begin(), but keeps rows up to `step` as this run's. `totals`
  /// are those of all steps so far.
  void resume(const std::string& config, std::int64_t step,
              const Totals& totals);

  void add(StepRow row);
  void add(ValidationRow row);
  /// Returns the sums of all steps so far, including those before a checkpoint
  /// of another folder.
  [[nodiscard]] const Totals& totals() const noexcept { return totals_; }
  /// Returns the newest step in metrics.jsonl, if there is one.
  [[nodiscard]] const std::optional<StepRow>& newest() const noexcept {
    return newest_;
  }
  /// Writes summary.json.
  void finish(const Json& summary) const;

 private:
  void write_config(const std::string& config) const;

  std::filesystem::path folder_;
  int lock_ = -1;
  std::optional<engine::LineFile> metrics_{};
  Totals totals_{};
  std::optional<StepRow> newest_{};
};

/// Writes a whole file; throws Error(kUnavailable).
void write_file(const std::filesystem::path& path, const std::string& text);

}  // namespace thinwire::train_gpt
