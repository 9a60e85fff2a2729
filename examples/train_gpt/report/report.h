// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "examples/train_gpt/report/run_folder.h"

namespace thinwire::train_gpt {

/// Returns one self-contained HTML page about one or more runs: results, loss
/// by step, bytes and time, and settings. It is light or dark as the reader's
/// system is, and needs no network and no scripts. `runs` is not empty.
[[nodiscard]] std::string render_report(const std::vector<RunRecord>& runs);

/// Returns the results as a table of plain text, one run per line.
[[nodiscard]] std::string render_table(const std::vector<RunRecord>& runs);

}  // namespace thinwire::train_gpt
