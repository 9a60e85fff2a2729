// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/train_gpt/report/run_record.h"

namespace thinwire::train_gpt {

/// One self-contained HTML page about one or more runs: loss curves, bytes,
/// time, results and settings. Light or dark as the reader's system asks; needs
/// no network and no scripts. `runs` is not empty.
[[nodiscard]] std::string render_report(const std::vector<RunRecord>& runs);

/// The results as a table of plain text, one run a line.
[[nodiscard]] std::string render_table(const std::vector<RunRecord>& runs);

}  // namespace thinwire::train_gpt
