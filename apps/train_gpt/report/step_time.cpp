// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/report/step_time.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/train_gpt/report/chart.h"
#include "apps/train_gpt/report/report_charts.h"
#include "apps/train_gpt/report/report_style.h"

namespace thinwire::train_gpt {

namespace {

constexpr const char* kHead =
    "<table><thead><tr><th>optimizer</th>"
    "<th class=\"number\">tokens per second</th>"
    "<th class=\"number\">computing, ms per step</th>"
    "<th class=\"number\">waiting</th>"
    "<th class=\"number\">updating</th>"
    "<th class=\"number\">overlap</th></tr></thead><tbody>\n";

std::string cell(const std::string& text) {
  return fmt::format("<td class=\"number\">{}</td>", text);
}

std::string ms(double seconds) { return fmt::format("{:.4g}", seconds * 1e3); }

// Earlier versions recorded how long a step was, and not what of.
bool has_parts(const RunRecord& run) {
  return std::any_of(run.steps.begin(), run.steps.end(),
                     [](const StepRow& row) { return row.update_seconds > 0; });
}

}  // namespace

StepTime step_time(const RunRecord& run) {
  StepTime sum;
  double busy = 0;
  double whole = 0;
  for (const StepRow& row : run.steps) {
    whole += row.seconds;
    sum.waiting += row.wait_seconds;
    sum.updating += row.update_seconds;
    busy += row.exchange_seconds;
  }
  const auto count =
      static_cast<double>(std::max<std::size_t>(run.steps.size(), 1));
  return {
      .computing = std::max(whole - sum.waiting - sum.updating, 0.0) / count,
      .waiting = sum.waiting / count,
      .updating = sum.updating / count,
      .overlap = busy > 0 ? std::clamp(1 - sum.waiting / busy, 0.0, 1.0) : 1};
}

std::string step_time_html(const std::vector<RunRecord>& runs) {
  std::string html = kHead;
  const auto names = names_of(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    html += fmt::format("<tr><td><span class=\"swatch b{}\"></span>{}</td>",
                        i % kRunColors, escape_html(names[i]));
    html += cell(fmt::format("{:.0f}", runs[i].summary.tokens_per_second));
    const StepTime time = step_time(runs[i]);
    const bool is_known = has_parts(runs[i]);
    for (const double part : {time.computing, time.waiting, time.updating})
      html += cell(is_known ? ms(part) : "–");
    html += cell(is_known ? fmt::format("{:.0f} %", time.overlap * 100) : "–");
    html += "</tr>\n";
  }
  return html + "</tbody></table>\n";
}

}  // namespace thinwire::train_gpt
