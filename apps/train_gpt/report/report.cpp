// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>

#include "apps/train_gpt/report/report_charts.h"
#include "apps/train_gpt/report/report_style.h"
#include "apps/train_gpt/report/step_time.h"
#include "apps/train_gpt/report/units.h"

namespace thinwire::train_gpt {
namespace {

constexpr const char* kNoValue = "–";
constexpr std::size_t kNameWidth = 16;

// A run that was stopped early has no validation yet.
std::string loss(double value) {
  return std::isnan(value) ? kNoValue : fmt::format("{:.4f}", value);
}

bool anything_sent(const std::vector<RunRecord>& runs) {
  return std::any_of(runs.begin(), runs.end(), [](const RunRecord& run) {
    return run.summary.bytes_sent_per_rank > 0;
  });
}

std::string bytes_or_none(std::optional<double> bytes) {
  return bytes ? format_bytes(*bytes) : kNoValue;
}

// How many times fewer bytes a compressed step sends than an exact one.
std::string saving(const RunRecord& run) {
  const double exact = run.bytes_per_step("exact").value_or(0);
  const double compressed = run.bytes_per_step("compressed").value_or(0);
  return compressed > 0 && exact > 0
             ? fmt::format("{:.1f}×", exact / compressed)
             : kNoValue;
}

struct Column {
  std::string_view title;       // Under the headings of the page.
  std::string_view text_title;  // Alone.
  std::string (*cell)(const RunRecord&);
};

constexpr std::array kResults = {
    Column{
        "nats per byte", "val nats/byte",
        [](const RunRecord& run) { return loss(run.summary.final_val_loss); }},
    Column{"bits per byte", "val bits/byte",
           [](const RunRecord& run) {
             return loss(run.summary.final_val_bits_per_byte);
           }},
    Column{"exact step", "sent/exact step",
           [](const RunRecord& run) {
             return bytes_or_none(run.bytes_per_step("exact"));
           }},
    Column{"compressed step", "sent/compr. step",
           [](const RunRecord& run) {
             return bytes_or_none(run.bytes_per_step("compressed"));
           }},
    Column{"local step", "sent/local step",
           [](const RunRecord& run) {
             return bytes_or_none(run.bytes_per_step("local"));
           }},
    Column{"saving", "saving", saving},
    Column{"rounds per step", "rounds/step",
           [](const RunRecord& run) {
             return fmt::format("{:.3g}", run.rounds_per_step());
           }},
    Column{"sent in all", "sent in all",
           [](const RunRecord& run) {
             return format_bytes(
                 static_cast<double>(run.summary.bytes_sent_per_rank));
           }},
    Column{"seconds", "seconds",
           [](const RunRecord& run) {
             return fmt::format("{:.1f}", run.summary.seconds);
           }},
};

std::string results_html(const std::vector<RunRecord>& runs) {
  std::string html =
      "<table><thead><tr><th rowspan=\"2\">optimizer</th>"
      "<th colspan=\"2\" class=\"group\">loss on held-out text</th>"
      "<th colspan=\"6\" class=\"group\">sent per rank</th>"
      "<th rowspan=\"2\" class=\"number\">seconds</th></tr><tr>";
  for (const Column& column : kResults) {
    if (column.title != "seconds") {
      html += fmt::format("<th class=\"number\">{}</th>", column.title);
    }
  }
  html += "</tr></thead><tbody>\n";
  const auto names = names_of(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    html += fmt::format("<tr><td><span class=\"swatch b{}\"></span>{}</td>",
                        i % kRunColors, escape_html(names[i]));
    for (const Column& column : kResults) {
      html += fmt::format("<td class=\"number\">{}</td>", column.cell(runs[i]));
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table>\n";
}

std::string setting(const RunRecord& run, const std::string& name) {
  for (const auto& [key, value] : run.settings) {
    if (key == name) return value;
  }
  return kNoValue;
}

std::string loss_scales(const RunRecord& run) {
  if (run.summary.precision != "fp16" || run.steps.empty()) return kNoValue;
  return fmt::format("{:g}, {:g}", run.steps.front().loss_scale,
                     run.steps.back().loss_scale);
}

std::string settings_html(const std::vector<RunRecord>& runs) {
  std::vector<std::pair<std::string, std::vector<std::string>>> rows;
  for (const auto& [name, unused] : runs.front().settings) {
    rows.push_back({name, {}});
    for (const RunRecord& run : runs)
      rows.back().second.push_back(setting(run, name));
  }
  const auto add_row = [&](const char* name, auto&& value_of) {
    rows.push_back({name, {}});
    for (const RunRecord& run : runs)
      rows.back().second.push_back(value_of(run));
  };
  add_row("loss scale, first and last", loss_scales);
  add_row("skipped steps", [](const RunRecord& run) {
    return fmt::to_string(run.summary.skipped_steps);
  });
  const auto known = [](auto count) {
    return count == 0 ? std::string(kNoValue) : fmt::to_string(count);
  };
  add_row("ranks",
          [&](const RunRecord& run) { return known(run.summary.ranks); });
  add_row("parameters",
          [&](const RunRecord& run) { return known(run.summary.params); });
  const auto add_memory = [&](const char* name, auto member) {
    add_row(name, [member](const RunRecord& run) {
      return format_bytes(static_cast<double>(run.summary.memory.*member));
    });
  };
  add_memory("memory of a rank, at its peak", &MemoryOfRank::peak);
  add_memory("of it parameters", &MemoryOfRank::parameters);
  add_memory("of it gradients", &MemoryOfRank::gradients);
  add_memory("of it optimizer states", &MemoryOfRank::states);
  add_memory("of it buckets on their way", &MemoryOfRank::buckets);
  add_row("params_checksum",
          [](const RunRecord& run) { return run.summary.params_checksum; });
  std::string html = "<table><thead><tr><th>setting</th>";
  const auto names = names_of(runs);
  for (const auto& name : names) {
    html += fmt::format("<th class=\"number\">{}</th>", escape_html(name));
  }
  html += "</tr></thead><tbody>\n";
  for (const auto& [name, values] : rows) {
    html += fmt::format("<tr><td>{}</td>", escape_html(name));
    for (const auto& value : values) {
      html += fmt::format("<td class=\"number\">{}</td>", escape_html(value));
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table>\n";
}

std::string legend_html(const std::vector<RunRecord>& runs, bool with_kinds) {
  std::string html = "<p class=\"legend\">";
  const auto names = names_of(runs);
  for (std::size_t i = 0; i < names.size(); ++i) {
    html += fmt::format("<span><i class=\"swatch b{}\"></i>{}</span>",
                        i % kRunColors, escape_html(names[i]));
  }
  if (with_kinds) {
    html +=
        "<span class=\"kind\">line: training, smoothed</span>"
        "<span class=\"kind\">dots: held-out text</span>"
        "<span class=\"kind\">first losses: above the chart</span>"
        "<span class=\"kind\">strips: steps that average exactly (full), "
        "compressed (half), not at all (faint)</span>";
  }
  return html + "</p>\n";
}

std::string figure_html(const std::vector<RunRecord>& runs, const Chart& chart,
                        bool with_kinds = false) {
  return fmt::format("<figure><figcaption>{}</figcaption>\n{}{}</figure>\n",
                     escape_html(chart.title), legend_html(runs, with_kinds),
                     render_svg(chart));
}

std::string subtitle(const std::vector<RunRecord>& runs) {
  const Summary& first = runs.front().summary;
  std::string text = "A byte-level GPT";
  if (first.params > 0)
    text += fmt::format(" with {} parameters",
                        format_count(static_cast<double>(first.params)));
  text += fmt::format(", {} steps", first.steps);
  if (first.ranks > 0)
    text +=
        fmt::format(" on {} rank{}", first.ranks, first.ranks == 1 ? "" : "s");
  return text;
}

}  // namespace

std::string render_report(const std::vector<RunRecord>& runs) {
  const std::string title =
      runs.size() == 1 ? "Training with " + runs.front().summary.optimizer
                       : fmt::format("Comparison of {} runs", runs.size());
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light "
      "dark\">\n<title>{0} – Thinwire</title>\n<style>{1}</style></head>\n"
      "<body><main>\n<header><h1>{0}</h1>\n<p>{2}</p></header>\n",
      escape_html(title), kReportStyle, escape_html(subtitle(runs)));
  html += "<section>" + results_html(runs) + "</section>\n";
  html += "<div class=\"figures\">\n";
  html += figure_html(runs, loss_chart(runs), /*with_kinds=*/true);
  if (anything_sent(runs)) {
    html += figure_html(runs, loss_by_bytes_chart(runs));
    html += figure_html(runs, bytes_chart(runs));
  }
  html += figure_html(runs, loss_by_time_chart(runs));
  html += figure_html(runs, time_chart(runs));
  html += "</div>\n<section>" + step_time_html(runs) + "</section>\n<section>" +
          settings_html(runs) + "</section>\n";
  return html +
         "<footer>Loss is in nats per byte (bits are nats ÷ ln 2). Bytes are "
         "those that the optimizer of rank 0 handed to its transport; a round "
         "is a step that sends any. Time is that of the steps, validation not "
         "counted.</footer>\n"
         "</main></body></html>\n";
}

std::string render_table(const std::vector<RunRecord>& runs) {
  const auto names = names_of(runs);
  std::size_t name_width = kNameWidth;
  for (const auto& name : names)
    name_width = std::max(name_width, name.size() + 1);
  std::string text = fmt::format("{:<{}}", "optimizer", name_width);
  const auto width = [](const Column& column) {
    return column.text_title.size() + 2;
  };
  for (const Column& column : kResults) {
    text += fmt::format("{:>{}}", column.text_title, width(column));
  }
  text += '\n';
  for (std::size_t i = 0; i < runs.size(); ++i) {
    text += fmt::format("{:<{}}", names[i], name_width);
    for (const Column& column : kResults) {
      text += fmt::format("{:>{}}", column.cell(runs[i]), width(column));
    }
    text += '\n';
  }
  return text;
}

}  // namespace thinwire::train_gpt
