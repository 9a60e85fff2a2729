// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "apps/train_gpt/run_record.h"

namespace thinwire::train_gpt {

/// How far a run has come, for people: on a terminal one line that is drawn
/// again and again, elsewhere a line at every tenth of the run.
class Progress {
 public:
  enum class Style { kNone, kLines, kBar };

  /// kNone if `quiet`, else kBar where stderr is a terminal.
  [[nodiscard]] static Style style_for_stderr(bool quiet);

  /// Lines come after every so many steps; 0: ten in all.
  Progress(std::ostream& out, Style style, std::string name, std::int64_t steps,
           std::int64_t steps_per_line = 0);

  /// After every step. `row.loss` is the newest that is known.
  void step(const StepRow& row);
  /// After a validation.
  void validation(const ValidationRow& row);
  /// Leaves the bar as it stands.
  void finish();

 private:
  [[nodiscard]] std::string line(const StepRow& row) const;
  [[nodiscard]] std::string bar(std::int64_t step) const;

  std::ostream& out_;
  Style style_;
  std::string name_;
  std::int64_t steps_;
  std::int64_t steps_per_line_;
  double seconds_ = 0;  // Of all steps so far.
  double tokens_ = 0;
  double val_loss_ = 0;
  bool validated_ = false;
};

}  // namespace thinwire::train_gpt
