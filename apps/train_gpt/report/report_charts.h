// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/train_gpt/report/chart.h"
#include "apps/train_gpt/report/run_record.h"

namespace thinwire::train_gpt {

/// What the report shows of its runs; run i has colour i, modulo kRunColors.
[[nodiscard]] Chart loss_chart(const std::vector<RunRecord>& runs);
[[nodiscard]] Chart loss_by_time_chart(const std::vector<RunRecord>& runs);
[[nodiscard]] Chart loss_by_bytes_chart(const std::vector<RunRecord>& runs);
[[nodiscard]] Chart bytes_chart(const std::vector<RunRecord>& runs);
[[nodiscard]] Chart time_chart(const std::vector<RunRecord>& runs);

/// One name a run: its optimizer, and a number where two are alike.
[[nodiscard]] std::vector<std::string> names_of(
    const std::vector<RunRecord>& runs);

}  // namespace thinwire::train_gpt
