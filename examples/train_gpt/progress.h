// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>

#include "examples/train_gpt/run_folder.h"

namespace thinwire::train_gpt {

/// Shows a run's progress to people. A terminal has one line that is redrawn.
/// Other output has a line at every tenth of the run and at least every 30
/// seconds. Speed and time left are those of the last 10 seconds.
class Progress {
 public:
  enum class Style { kNone, kLines, kBar };

  /// Returns kNone if `quiet`, otherwise kBar if stderr is a terminal.
  [[nodiscard]] static Style style_for_stderr(bool quiet);

  /// Makes a line every `steps_per_line` steps, or ten in all if it is 0.
  /// `clock` returns seconds, and null means the system's clock.
  Progress(std::ostream& out, Style style, std::string name, std::int64_t steps,
           std::int64_t steps_per_line = 0,
           std::function<double()> clock = nullptr);

  /// Call after every step. `row.loss` is the newest known loss.
  void step(const StepRow& row);
  /// Call after a validation.
  void validation(const ValidationRow& row);
  /// Leaves the bar on the screen.
  void finish();

 private:
  void count(const StepRow& row);
  [[nodiscard]] bool is_due(const StepRow& row) const;
  [[nodiscard]] std::string line(const StepRow& row) const;
  [[nodiscard]] std::string bar(std::int64_t step) const;

  std::ostream& out_;
  Style style_;
  std::string name_;
  std::int64_t steps_;
  std::int64_t steps_per_line_;
  std::function<double()> clock_;
  double newest_line_ = 0;  // Time of the newest line.
  // The last steps, which took kSeconds together, or a single one.
  std::deque<Totals> recent_;
  Totals sum_;
  std::optional<double> val_loss_;
};

}  // namespace thinwire::train_gpt
