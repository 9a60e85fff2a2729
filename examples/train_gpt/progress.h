// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>

#include "examples/train_gpt/report/run_folder.h"

namespace thinwire::train_gpt {

/// How far a run has come, for people: on a terminal one line that is drawn
/// again and again, elsewhere a line at every tenth of the run and at least
/// every 30 seconds. Speed and time left are those of the last 10 seconds.
class Progress {
 public:
  enum class Style { kNone, kLines, kBar };

  /// kNone if `quiet`, else kBar where stderr is a terminal.
  [[nodiscard]] static Style style_for_stderr(bool quiet);

  /// Lines come after every so many steps; 0: ten in all.
  /// `clock` gives seconds, for lines; null: the system's.
  Progress(std::ostream& out, Style style, std::string name, std::int64_t steps,
           std::int64_t steps_per_line = 0,
           std::function<double()> clock = nullptr);

  /// After every step. `row.loss` is the newest that is known.
  void step(const StepRow& row);
  /// After a validation.
  void validation(const ValidationRow& row);
  /// Leaves the bar as it stands.
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
  double newest_line_ = 0;  // By the clock.
  // Of the last steps, which took kSeconds or are one.
  std::deque<Totals> recent_;
  Totals sum_;
  std::optional<double> val_loss_;
};

}  // namespace thinwire::train_gpt
