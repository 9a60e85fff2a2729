// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string_view>

#include "examples/train_gpt/report/units.h"
#include "report_page.h"  // generated from page.html

namespace thinwire::train_gpt {
namespace {

constexpr const char* kNoValue = "–";
constexpr const char* kBytes = "bytes";
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kRunColors = 5;  // of the page; more runs share them
constexpr std::size_t kTrainingPoints = 50;  // of the chart

// A run, and the sums over its steps.
struct Shown {
  const RunRecord& run;
  std::string name;
  std::string color;
  double rounds = 0;  // steps that exchanged parameters, not only a flag
  double waiting = 0, updating = 0;                            // seconds
  std::map<std::string, double, std::less<>> steps{}, sent{};  // by phase

  Shown(const RunRecord& record, std::string title, std::size_t number)
      : run(record),
        name(std::move(title)),
        color(fmt::format("c{}", number % kRunColors)) {
    for (const StepRow& row : run.steps) {
      if (row.bytes_sent > 0 && row.phase != "local") ++rounds;
      waiting += row.wait_seconds;
      updating += row.update_seconds;
      ++steps[row.phase];
      sent[row.phase] += static_cast<double>(row.bytes_sent);
    }
  }

  [[nodiscard]] double bytes_per_step(std::string_view phase) const {
    const auto found = steps.find(phase);
    return found == steps.end() ? kUnknown
                                : sent.find(phase)->second / found->second;
  }
  [[nodiscard]] double per_step(double sum) const {
    return sum / std::max(static_cast<double>(run.steps.size()), 1.0);
  }
  /// Returns the bytes that fp32 averages of all gradients would have sent per
  /// rank. They are unknown if the run was resumed, maybe with other ranks.
  [[nodiscard]] double fp32_averages() const {
    const double ranks = summary("ranks");
    if (run.summary.contains("resumed_from") || ranks < 2) return kUnknown;
    return static_cast<double>(run.steps.size()) * 2 * (ranks - 1) / ranks *
           sizeof(float) * summary("params");
  }
  [[nodiscard]] double summary(const char* key) const {
    return number(run.summary, key);
  }
};

// Gives each run a name: its optimizer, and a number if two are alike.
std::vector<Shown> shown(const std::vector<RunRecord>& runs) {
  const auto name_of = [](const Json& run) {
    auto name = run.at("optimizer").get<std::string>();
    if (run.contains("zero_bits"))
      name += fmt::format(", ZeRO-{} in {} bits", run.at("zero").get<int>(),
                          run.at("zero_bits").get<std::string>());
    return name;
  };
  std::vector<Shown> all;
  for (const RunRecord& run : runs) {
    std::string name = name_of(run.summary);
    const auto alike = std::ranges::count_if(
        runs, [&](const RunRecord& r) { return name_of(r.summary) == name; });
    if (alike > 1) name += fmt::format(" ({})", all.size() + 1);
    for (const auto& [word, key] : {std::pair{"resumed", "resumed_from"},
                                    std::pair{"stopped", "stopped_at"}})
      if (run.summary.contains(key))
        name +=
            fmt::format(", {} at step {:.0f}", word, number(run.summary, key));
    all.emplace_back(run, std::move(name), all.size());
  }
  return all;
}

// `format` is "bytes", or a format of fmt.
std::string text_of(double value, const char* format) {
  if (!std::isfinite(value)) return kNoValue;
  return format == kBytes ? format_bytes(value)
                          : fmt::format(fmt::runtime(format), value);
}

struct Column {
  const char* title;
  const char* format;
  double (*value)(const Shown&);
};

constexpr Column kResults[] = {
    {"val nats/byte", "{:.4f}",
     [](const Shown& run) { return run.summary("final_val_loss"); }},
    {"val bits/byte", "{:.4f}",
     [](const Shown& run) { return run.summary("final_val_bits_per_byte"); }},
    {"sent/warm-up step", kBytes,
     [](const Shown& run) { return run.bytes_per_step("exact"); }},
    {"sent/compr. step", kBytes,
     [](const Shown& run) { return run.bytes_per_step("compressed"); }},
    {"sent/local step", kBytes,
     [](const Shown& run) { return run.bytes_per_step("local"); }},
    {"saving", "{:.1f}×",
     [](const Shown& run) {
       return run.fp32_averages() / run.summary("bytes_sent_per_rank");
     }},
    {"rounds/step", "{:.3g}",
     [](const Shown& run) { return run.per_step(run.rounds); }},
    {"sent in all", kBytes,
     [](const Shown& run) { return run.summary("bytes_sent_per_rank"); }},
    {"seconds", "{:.1f}",
     [](const Shown& run) { return run.summary("seconds"); }},
};

std::string cell_of(const Column& column, const Shown& run) {
  return text_of(column.value(run), column.format);
}

std::string escape_html(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '<')
      safe += "&lt;";
    else if (c == '&')
      safe += "&amp;";
    else
      safe += c;
  }
  return safe;
}

using Row = std::vector<std::string>;

std::string row_html(const Row& row, std::string_view tag) {
  std::string html = "<tr>";
  for (const std::string& cell : row)
    html += fmt::format("<{0}>{1}</{0}>", tag, cell);
  return html + "</tr>\n";
}

std::string results_html(const std::vector<Shown>& runs) {
  Row head{"optimizer"};
  for (const Column& column : kResults) head.emplace_back(column.title);
  std::string html = row_html(head, "th");
  for (const Shown& run : runs) {
    Row row{fmt::format(
        "<i class=\"swatch\" style=\"background: var(--{})\"></i>{}", run.color,
        escape_html(run.name))};
    for (const Column& column : kResults) row.push_back(cell_of(column, run));
    html += row_html(row, "td");
  }
  return html;
}

// Returns settings and details, a row each.
std::string details_html(const std::vector<Shown>& runs) {
  Row head{"setting"};
  for (const Shown& run : runs) head.push_back(escape_html(run.name));
  std::string html = row_html(head, "th");
  const auto add_row = [&](const std::string& name, auto&& value_of) {
    Row row{name};
    for (const Shown& run : runs) row.push_back(escape_html(value_of(run)));
    html += row_html(row, "td");
  };
  std::vector<std::string> keys;
  for (const Shown& shown : runs)
    for (const auto& [key, unused] : shown.run.settings)
      if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
  for (const std::string& key : keys)
    add_row(key, [&](const Shown& shown) -> std::string {
      for (const auto& [its, value] : shown.run.settings)
        if (its == key) return value;
      return kNoValue;
    });
  for (const char* key :
       {"ranks", "params", "skipped_steps", "saves", "tokens_per_second"})
    add_row(key, [&](const Shown& run) {
      const double count = run.summary(key);
      return text_of(count == 0 ? kUnknown : count, "{:.0f}");
    });
  for (const auto& [name, seconds] :
       {std::pair{"waiting for ranks, ms per step", &Shown::waiting},
        std::pair{"updating, ms per step", &Shown::updating}})
    add_row(name, [part = seconds](const Shown& run) {
      return text_of(run.per_step(run.*part) * 1e3, "{:.4g}");
    });
  for (const char* kind :
       {"peak", "parameters", "gradients", "states", "buckets"})
    add_row(fmt::format("memory of a rank at its peak: {}", kind),
            [&](const Shown& shown) {
              const Json& memory = shown.run.summary.at("memory");
              return text_of(
                  memory.contains(kind) ? number(memory, kind) : kUnknown,
                  kBytes);
            });
  add_row("params_checksum", [](const Shown& shown) {
    return shown.run.summary.at("params_checksum").get<std::string>();
  });
  return html;
}

// Returns the data of the charts. Training losses are means over parts of the
// run. Held-out losses have the bytes and seconds of the steps so far.
Json curves_of(const Shown& shown) {
  const std::vector<StepRow>& steps = shown.run.steps;
  Json training = Json::array();
  const std::size_t parts = std::min(kTrainingPoints, steps.size());
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t first = steps.size() * part / parts;
    const std::size_t end = steps.size() * (part + 1) / parts;
    double sum = 0;
    for (std::size_t i = first; i < end; ++i) sum += steps[i].loss;
    training.push_back({steps[(first + end) / 2].step,
                        sum / static_cast<double>(end - first)});
  }
  Json held_out = Json::array();
  std::uint64_t bytes = 0;
  double seconds = 0;
  auto next = shown.run.validations.begin();
  for (const StepRow& row : steps) {
    bytes += row.bytes_sent;
    seconds += row.seconds;
    for (; next != shown.run.validations.end() && next->step <= row.step;
         ++next)
      held_out.push_back({next->step, bytes, seconds, next->val_loss});
  }
  return {{"name", shown.name},
          {"color", shown.color},
          {"training", std::move(training)},
          {"heldOut", std::move(held_out)}};
}

std::string subtitle(const Shown& first) {
  std::string text = "A byte-level GPT";
  if (const double params = first.summary("params"); params > 0)
    text += fmt::format(" with {} parameters", format_count(params));
  text += fmt::format(", {:.0f} steps", first.summary("steps"));
  if (const double ranks = first.summary("ranks"); ranks > 0)
    text += fmt::format(" on {:.0f} rank{}", ranks, ranks == 1 ? "" : "s");
  return text;
}

void fill(std::string& page, const std::string& place,
          const std::string& text) {
  for (std::size_t at = page.find(place); at != std::string::npos;
       at = page.find(place, at + text.size()))
    page.replace(at, place.size(), text);
}

}  // namespace

std::string render_report(const std::vector<RunRecord>& records) {
  const std::vector<Shown> runs = shown(records);
  Json curves = Json::array();
  for (const Shown& run : runs) curves.push_back(curves_of(run));
  std::string script = curves.dump();
  fill(script, "<", "\\u003c");  // so that no name ends the script
  std::string page = kPage;
  fill(page, "{{title}}",
       runs.size() == 1 ? "Training with " + escape_html(runs.front().name)
                        : fmt::format("Comparison of {} runs", runs.size()));
  fill(page, "{{subtitle}}", subtitle(runs.front()));
  fill(page, "{{results}}", results_html(runs));
  fill(page, "{{details}}", details_html(runs));
  fill(page, "{{runs}}", script);
  return page;
}

std::string render_table(const std::vector<RunRecord>& records) {
  constexpr std::size_t kLeastWidth = 16;
  const std::vector<Shown> runs = shown(records);
  std::size_t width = kLeastWidth;
  for (const Shown& run : runs) width = std::max(width, run.name.size() + 1);
  std::string text = fmt::format("{:<{}}", "optimizer", width);
  const auto add = [&](const Column& column, std::string_view cell) {
    text +=
        fmt::format("{:>{}}", cell, std::string_view(column.title).size() + 2);
  };
  for (const Column& column : kResults) add(column, column.title);
  for (const Shown& run : runs) {
    text += fmt::format("\n{:<{}}", run.name, width);
    for (const Column& column : kResults) add(column, cell_of(column, run));
  }
  return text + '\n';
}

}  // namespace thinwire::train_gpt
