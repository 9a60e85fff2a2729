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

/// A file of lines that never ends a run. If it cannot be opened or written,
/// lines are dropped until it can. One warning is logged. Local, used by one
/// thread. A line is passed to the system as a whole. A killed process loses no
/// line for which write() returned true, and if the disk is full, no line is
/// truncated.
class LineFile {
 public:
  enum class Mode { kAppend, kTruncate };
  /// Opens the file, or creates it. When appending, text after the last end of
  /// line is kept as a separate line.
  explicit LineFile(std::string path, Mode mode = Mode::kAppend);
  ~LineFile();
  LineFile(LineFile&& other) noexcept;
  LineFile& operator=(LineFile&& other) noexcept;

  /// Writes `line`, which has no end of line. Returns false if it was dropped.
  bool write(std::string_view line);
  /// Returns the number of dropped lines.
  [[nodiscard]] std::int64_t dropped() const noexcept { return dropped_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  bool open(int flags);
  bool failed(std::string_view what, int error);

  std::string path_;
  int file_ = -1;
  std::int64_t dropped_ = 0;
  bool has_warned_ = false;
};

/// Values of a line that are not in the report.
struct TelemetryExtra {
  MemoryUse memory{};
  /// Optimizer::residual_ratio(); unset if there are no residuals, or
  /// none was requested in this step.
  std::optional<double> residual_ratio{};
  /// Progress::lamb_coeffs of this step; empty unless it is LAMB.
  std::vector<double> lamb_coeffs{};
  /// Whether an engine made the gradients; otherwise a line lacks
  /// seconds.backward, late_elements and waited_for.
  bool has_backward = true;
};

/// Returns the share of communication time in which this rank did not wait, 1 -
/// wait / busy in [0, 1]. It is 1 if there was no communication.
[[nodiscard]] double overlap_of(const optim::StepReport& report) noexcept;

/// Returns one step as a JSON object on one line, without its end:
///   step, applied, phase, loss_scale, bits if an exact step averaged low-bit
///   gradients, drift and rho in a sync of an outer loop, grad_norm,
///   is_estimate, clip_factor, lr, seconds {step, backward, wait, comm_busy},
///   bytes_sent, bytes_between_hosts, messages, collectives, overlap,
///   late_elements, waited_for, residual_ratio if there is one, with LAMB
///   lamb_coeffs {minimum, median, maximum}, memory {parameters, gradients,
///   states, buckets, other}
/// NaN and infinity are null. See docs/guide/telemetry.md.
[[nodiscard]] std::string telemetry_line(const EngineReport& report,
                                         const TelemetryExtra& extra = {});

/// Writes the lines of an engine's steps by a TelemetryConfig.
class Telemetry {
 public:
  /// Opens config.path on rank 0, or PATH.rankN on each rank with
  /// config.every_rank. Opens nothing on other ranks, or if the path is empty.
  Telemetry(const config::TelemetryConfig& config, int rank);

  /// Returns whether the caller must call write() after this step, which is at
  /// a boundary; skipped steps count too.
  [[nodiscard]] bool wants_line(std::int64_t step) const noexcept;
  [[nodiscard]] bool wants_residual_ratio(std::int64_t step) const noexcept;
  void write(const EngineReport& report, const TelemetryExtra& extra);

 private:
  std::int64_t every_;
  std::int64_t residual_every_;
  std::optional<LineFile> file_;
};

}  // namespace thinwire::engine
