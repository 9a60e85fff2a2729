// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/train_gpt/report/run_record.h"

namespace thinwire::train_gpt {

/// Where the time of a run's steps went, in seconds per step, means.
struct StepTime {
  double computing = 0;  ///< Forward and backward.
  double waiting = 0;    ///< For other ranks.
  double updating = 0;   ///< The optimizer's work.
  /// Of the time in which ranks exchanged, the share that cost no waiting; 1
  /// where they exchanged nothing.
  double overlap = 1;
};
[[nodiscard]] StepTime step_time(const RunRecord& run);

/// A table of it, with tokens per second: a row per run.
[[nodiscard]] std::string step_time_html(const std::vector<RunRecord>& runs);

}  // namespace thinwire::train_gpt
