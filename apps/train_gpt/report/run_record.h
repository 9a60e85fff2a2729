// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/train_gpt/folder_lock.h"
#include "thinwire/engine/telemetry.h"

namespace thinwire::train_gpt {

/// One line of metrics.jsonl: a training step, all its numbers of that step.
struct StepRow {
  std::int64_t step = 0;
  double loss = 0;  ///< Nats per byte, mean over ranks, before the update.
  double lr = 0;
  std::string phase;  ///< "exact", "compressed", "local".
  double loss_scale = 1;
  std::uint64_t tokens = 0;      ///< Bytes predicted, all ranks together.
  std::uint64_t bytes_sent = 0;  ///< By the optimizer, on rank 0.
  double seconds = 0;
  std::uint64_t memory_bytes = 0;  ///< Of rank 0, at its peak so far.
  /// Elements that take no part, that travel scaled down, whose first gradient
  /// came in this step: see optim::StepReport.
  std::uint64_t masked = 0, heavy = 0, revived = 0;
  double time = 0;  ///< Unix seconds, when the step was over.
  double grad_norm = 0;
  bool applied = true;  ///< False: a gradient was not finite.
  // Of `seconds`, all but the last: what is left is forward and backward.
  double wait_seconds = 0;      ///< For other ranks.
  double update_seconds = 0;    ///< The optimizer's, without waiting.
  double exchange_seconds = 0;  ///< A collective was under way, beside all.
  std::uint64_t bytes_between_hosts = 0;
};

/// Another line of metrics.jsonl: a validation after that step.
struct ValidationRow {
  std::int64_t step = 0;
  double val_loss = 0;  ///< Nats per byte.
};

/// Bytes of rank 0 when it held most, by what they are for; counted where they
/// are allocated. Activations are torch's, and not in it.
struct MemoryOfRank {
  std::uint64_t parameters = 0;
  std::uint64_t gradients = 0;
  std::uint64_t states = 0;  ///< Of the optimizer, and masters.
  std::uint64_t buckets = 0;
  std::uint64_t other = 0;
  std::uint64_t peak = 0;  ///< The sum.
};

/// summary.json.
struct Summary {
  std::string optimizer;
  std::string semantics;
  std::string precision = "fp32";  ///< "fp32", "fp16", "bf16".
  int ranks = 1;
  std::int64_t steps = 0;
  std::uint64_t params = 0;
  double final_val_loss = 0;  ///< Nats per byte.
  double final_val_bits_per_byte = 0;
  std::uint64_t bytes_sent_per_rank = 0;  ///< By the optimizer, on rank 0.
  double seconds = 0;  ///< Of all steps; validation not counted.
  double tokens_per_second = 0;
  std::int64_t skipped_steps = 0;  ///< A gradient was not finite.
  int zero = 0;                    ///< Stage.
  bool offload = false;
  /// Bits of gradients and of parameters that ZeRO sends: "4/8"; empty: exact.
  std::string zero_bits{};
  MemoryOfRank memory{};
  std::string params_checksum{};
  /// The last step that is recorded, of a run that did not reach its end.
  std::optional<std::int64_t> stopped_at{};
  std::string stopped_by{};  ///< "SIGINT"; empty: not known, as after SIGKILL.
  /// The step of the checkpoint that the run went on from.
  std::optional<std::int64_t> resumed_from{};
  std::int64_t saves = 0;   ///< Complete checkpoints.
  double save_seconds = 0;  ///< That training waited for them.

  /// Adds bytes, time and the last loss of a run's steps.
  void add(const struct Totals& totals);
};

using Settings = std::vector<std::pair<std::string, std::string>>;

/// Sums over steps, and the newest validation.
struct Totals {
  std::uint64_t bytes_sent = 0;
  double seconds = 0;
  double tokens = 0;
  std::optional<double> val_loss{};

  void add(const StepRow& row);
};

/// All that is known of a run.
struct RunRecord {
  Summary summary{};
  Settings settings{};
  std::vector<StepRow> steps{};
  std::vector<ValidationRow> validations{};

  /// Of all steps.
  [[nodiscard]] Totals totals() const;
  /// Mean bytes of a step in this phase; nothing if there was none.
  [[nodiscard]] std::optional<double> bytes_per_step(
      std::string_view phase) const;
  /// The share of steps that exchanged parameters' worth, not only a flag.
  [[nodiscard]] double rounds_per_step() const;
};

/// Whether a run with this folder writes that file itself, by whatever name it
/// goes.
[[nodiscard]] bool is_written_by_run(const std::filesystem::path& folder,
                                     const std::filesystem::path& file);

/// Writes a run's folder while it goes on. Failures to write throw
/// Error(kUnavailable) naming the file, but a line of metrics.jsonl for which
/// there is no room is a warning, and missing there: engine::LineFile.
class RunWriter {
 public:
  /// Creates the folder; while this object lives no other one can be made for
  /// it. Throws Error(kInvalidArgument) if some of `data` lies in it. `config`
  /// is what a configuration file adds to the settings, as JSON text, or empty.
  RunWriter(std::filesystem::path folder, Settings settings,
            const std::vector<std::string>& data, std::string config = {});

  /// Begins with an empty metrics.jsonl; results of an earlier run are removed.
  void begin();
  /// The same, but rows up to `step` stay, and count as this run's; later ones
  /// are dropped. `totals` are those of all steps so far.
  void go_on(std::int64_t step, const Totals& totals);

  void add(StepRow row);
  void add(ValidationRow row);
  /// Of all steps so far, also of those before a checkpoint of another folder.
  [[nodiscard]] const Totals& totals() const noexcept { return totals_; }
  /// The newest step in metrics.jsonl, if there is one.
  [[nodiscard]] const std::optional<StepRow>& newest() const noexcept {
    return newest_;
  }
  /// Writes summary.json. Returns the record of the whole run, whose rows are
  /// read from metrics.jsonl: memory holds none of them.
  [[nodiscard]] RunRecord finish(Summary summary) const;

 private:
  void write_config();

  std::filesystem::path folder_;
  std::vector<std::string> data_;
  std::string config_;
  std::optional<FolderLock> lock_;
  std::optional<engine::LineFile> metrics_;
  Settings settings_;
  Totals totals_;
  std::optional<StepRow> newest_;
};

/// Reads back what RunWriter wrote. Where only summary.json is missing, the run
/// was killed: its summary is made of what metrics.jsonl has, up to the last
/// whole line, with ranks and params 0 where nothing says them. Throws
/// Error(kUnavailable) naming the file that is missing or torn.
[[nodiscard]] RunRecord read_run(const std::filesystem::path& folder);

/// Writes a whole file; throws Error(kUnavailable).
void write_file(const std::filesystem::path& path, const std::string& text);

}  // namespace thinwire::train_gpt
