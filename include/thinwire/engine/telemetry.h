// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/config/config.h"
#include "thinwire/core/memory.h"
#include "thinwire/engine/engine.h"

namespace thinwire::engine {

/// A file that gets line after line and never ends a run: where it cannot be
/// opened or written, the log gets one warning, and lines are dropped until it
/// can be written again. Local, used by one thread. A line is handed to the
/// system as a whole: a killed process loses none that write() has taken, and a
/// line that the disk had no room for is not there in part.
class LineFile {
 public:
  enum class Mode { kAppend, kTruncate };
  /// Opens the file, and makes it where it is missing. What a file to append to
  /// has after its last end of line stays, on a line of its own.
  explicit LineFile(std::string path, Mode mode = Mode::kAppend);
  ~LineFile();
  LineFile(LineFile&& other) noexcept;
  LineFile& operator=(LineFile&& other) noexcept;

  /// `line` is without its end. False: it was dropped.
  bool write(std::string_view line);
  /// Lines that were dropped.
  [[nodiscard]] std::int64_t dropped() const noexcept { return dropped_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  bool failed(std::string_view what, int error);

  std::string path_;
  int file_ = -1;
  std::int64_t dropped_ = 0;
  bool has_warned_ = false;
};

/// What one line says beside the report.
struct TelemetryExtra {
  MemoryUse memory{};
  /// Of the optimizer's residuals, Optimizer::residual_ratio(); nothing:
  /// none, or not asked for in this step.
  std::optional<double> residual_ratio{};
  /// Progress::lamb_coeffs of this step; empty unless it is LAMB's.
  std::vector<double> lamb_coeffs{};
};

/// The share of the time in which collectives were under way that cost no
/// waiting: 1 - wait / busy, in [0, 1]; 1 where nothing was under way.
[[nodiscard]] double overlap_of(const optim::StepReport& report) noexcept;

/// One step as a JSON object on one line, without its end: step, applied,
/// phase, loss_scale, grad_norm, is_estimate, clip_factor, lr, seconds {step,
/// backward, wait, comm_busy}, bytes_sent, bytes_between_hosts, messages,
/// collectives, overlap, late_elements, waited_for, residual_ratio where there
/// is one, with LAMB lamb_coeffs {minimum, median, maximum}, memory
/// {parameters, gradients, states, buckets, other}. NaN and infinity are null.
/// docs/guide/telemetry.md.
[[nodiscard]] std::string telemetry_line(const EngineReport& report,
                                         const TelemetryExtra& extra = {});

/// The lines of an engine's steps, as a TelemetryConfig says.
class Telemetry {
 public:
  /// Opens config.path on rank 0, or with config.every_rank PATH.rankN on each;
  /// nothing on other ranks and where the path is empty.
  Telemetry(const config::TelemetryConfig& config, int rank);

  /// Whether write() is to be called after this step, a step at a boundary,
  /// skipped ones included.
  [[nodiscard]] bool wants_line(std::int64_t step) const noexcept;
  [[nodiscard]] bool wants_residual_ratio(std::int64_t step) const noexcept;
  void write(const EngineReport& report, const TelemetryExtra& extra);

 private:
  std::int64_t every_;
  std::int64_t residual_every_;
  std::optional<LineFile> file_;
};

}  // namespace thinwire::engine
