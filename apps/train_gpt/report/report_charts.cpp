// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/report/report_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "apps/train_gpt/report/report_style.h"
#include "apps/train_gpt/report/units.h"

namespace thinwire::train_gpt {
namespace {

constexpr std::size_t kSmoothingPart = 25;  // windows of 1/25 of a run

std::string format_loss(double loss) { return fmt::format("{:.4g}", loss); }
std::string format_step(double step) { return fmt::format("{:.0f}", step); }
std::string format_milliseconds(double ms) { return fmt::format("{:.4g}", ms); }

// Mean over a window around each point, as far as there are neighbours.
std::vector<Point> smooth(const std::vector<Point>& points) {
  const std::size_t reach = points.size() / kSmoothingPart / 2;
  std::vector<Point> smoothed;
  for (std::size_t i = 0; i < points.size(); ++i) {
    // As far to one side as to the other, so that slopes stay where they are.
    const std::size_t side = std::min({reach, i, points.size() - 1 - i});
    double sum = 0;
    for (std::size_t j = i - side; j <= i + side; ++j) sum += points[j].y;
    smoothed.push_back({points[i].x, sum / static_cast<double>(2 * side + 1)});
  }
  return smoothed;
}

// "5 MB" where a table has "5.00 MB".
std::string format_byte_tick(double bytes) {
  std::string text = format_bytes(bytes);
  const std::size_t point = text.find('.');
  if (point == std::string::npos) return text;
  const std::size_t space = text.find(' ');
  std::size_t end = space;
  while (text[end - 1] == '0') --end;
  if (end - 1 == point) --end;
  return text.erase(end, space - end);
}

template <class Value>
std::vector<Point> by_step(const RunRecord& run, Value&& value) {
  std::vector<Point> points;
  for (const StepRow& row : run.steps) {
    points.push_back({static_cast<double>(row.step), value(row)});
  }
  return points;
}

double strength_of(const std::string& phase) {
  return phase == "exact" ? 1 : phase == "local" ? 0.1 : 0.45;
}

// The phases of a run. Steps of a long run share bands, with their mean: phases
// may change in every step, and so many could not be told apart.
std::vector<Band> phase_bands(const RunRecord& run) {
  constexpr std::size_t kMostBands = 600;
  const std::size_t count = std::min(run.steps.size(), kMostBands);
  std::vector<Band> bands;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t first = run.steps.size() * i / count;
    const std::size_t end = run.steps.size() * (i + 1) / count;
    double sum = 0;
    for (std::size_t j = first; j < end; ++j) {
      sum += strength_of(run.steps[j].phase);
    }
    bands.push_back({static_cast<double>(run.steps[first].step) - 0.5,
                     static_cast<double>(run.steps[end - 1].step) + 0.5,
                     sum / static_cast<double>(end - first)});
  }
  return bands;
}

// The first losses are several times the last, and what is to be compared would
// be too small to see: the axis ends a little above the first validation.
double first_losses_left_out(const std::vector<RunRecord>& runs) {
  constexpr double kAbove = 1.1;
  double most = 0;
  for (const RunRecord& run : runs) {
    if (!run.validations.empty()) {
      most = std::max(most, run.validations.front().val_loss * kAbove);
    }
  }
  return most > 0 ? most : std::numeric_limits<double>::infinity();
}

}  // namespace

namespace {

std::string name_of(const Summary& run) {
  return run.zero_bits.empty()
             ? run.optimizer
             : fmt::format("{}, ZeRO-{} in {} bits", run.optimizer, run.zero,
                           run.zero_bits);
}

std::string format_seconds(double seconds) {
  return fmt::format("{:.4g}", seconds);
}

// Losses on held-out text by the sum of `part` over steps so far.
template <class Part>
std::vector<Point> held_out_by(const RunRecord& run, Part&& part) {
  std::vector<Point> points;
  double sum = 0;
  auto next = run.validations.begin();
  for (const StepRow& row : run.steps) {
    sum += part(row);
    for (; next != run.validations.end() && next->step <= row.step; ++next)
      if (next->step == row.step) points.push_back({sum, next->val_loss});
  }
  return points;
}

}  // namespace

std::vector<std::string> names_of(const std::vector<RunRecord>& runs) {
  std::vector<std::string> names;
  for (const RunRecord& run : runs) {
    const auto alike =
        std::count_if(runs.begin(), runs.end(), [&](const RunRecord& r) {
          return name_of(r.summary) == name_of(run.summary);
        });
    const std::string name = name_of(run.summary);
    names.push_back(alike > 1 ? fmt::format("{} ({})", name, names.size() + 1)
                              : name);
    if (run.summary.resumed_from)
      names.back() +=
          fmt::format(", resumed at step {}", *run.summary.resumed_from);
    if (run.summary.stopped_at)
      names.back() +=
          fmt::format(", stopped at step {}", *run.summary.stopped_at);
  }
  return names;
}

Chart loss_chart(const std::vector<RunRecord>& runs) {
  Chart chart{"Loss by step",
              {"step", false, format_step},
              {"nats per byte", false, format_loss},
              {},
              {}};
  chart.y.most = first_losses_left_out(runs);
  const auto names = names_of(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto raw =
        by_step(runs[i], [](const StepRow& row) { return row.loss; });
    chart.series.push_back({names[i] + ", training", i % kRunColors,
                            Series::Style::kFaintLine, raw});
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto raw =
        by_step(runs[i], [](const StepRow& row) { return row.loss; });
    chart.series.push_back({names[i] + ", training, smoothed", i % kRunColors,
                            Series::Style::kLine, smooth(raw)});
    std::vector<Point> held_out;
    for (const ValidationRow& row : runs[i].validations) {
      held_out.push_back({static_cast<double>(row.step), row.val_loss});
    }
    chart.series.push_back({names[i] + ", held-out text", i % kRunColors,
                            Series::Style::kDots, held_out});
    chart.strips.push_back(
        {names[i] + ", phases", i % kRunColors, phase_bands(runs[i])});
  }
  return chart;
}

Chart loss_by_time_chart(const std::vector<RunRecord>& runs) {
  Chart chart{"Loss on held-out text by time",
              {"seconds of training so far", false, format_seconds},
              {"nats per byte, held-out text", false, format_loss},
              {},
              {}};
  const auto names = names_of(runs);
  for (std::size_t i = 0; i < runs.size(); ++i)
    chart.series.push_back(
        {names[i], i % kRunColors, Series::Style::kDottedLine,
         held_out_by(runs[i], [](const StepRow& row) { return row.seconds; })});
  return chart;
}

Chart loss_by_bytes_chart(const std::vector<RunRecord>& runs) {
  Chart chart{"Loss on held-out text by bytes sent",
              {"bytes sent per rank so far", true, format_byte_tick},
              {"nats per byte, held-out text", false, format_loss},
              {},
              {}};
  const auto names = names_of(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    chart.series.push_back({names[i], i % kRunColors,
                            Series::Style::kDottedLine,
                            held_out_by(runs[i], [](const StepRow& row) {
                              return static_cast<double>(row.bytes_sent);
                            })});
  }
  return chart;
}

// A dot per step, as it was sent: a line would go through what none sent where
// 0/1 Adam goes to and fro between its phases. Of long runs every n-th step, n
// odd: its intervals are powers of two.
Chart bytes_chart(const std::vector<RunRecord>& runs) {
  constexpr std::size_t kMostDots = 800;
  Chart chart{"Bytes sent per step",
              {"step", false, format_step},
              {"bytes sent per rank and step", true, format_byte_tick},
              {},
              {}};
  const auto names = names_of(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::size_t stride = (runs[i].steps.size() / kMostDots) | 1;
    std::vector<Point> points;
    for (std::size_t k = 0; k < runs[i].steps.size(); k += stride)
      points.push_back({static_cast<double>(runs[i].steps[k].step),
                        static_cast<double>(runs[i].steps[k].bytes_sent)});
    chart.series.push_back(
        {names[i], i % kRunColors, Series::Style::kDots, std::move(points)});
  }
  return chart;
}

Chart time_chart(const std::vector<RunRecord>& runs) {
  Chart chart{"Time per step",
              {"step", false, format_step},
              {"milliseconds per step, smoothed", false, format_milliseconds},
              {},
              {}};
  const auto names = names_of(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    chart.series.push_back({names[i], i % kRunColors, Series::Style::kLine,
                            smooth(by_step(runs[i], [](const StepRow& row) {
                              return row.seconds * 1e3;
                            }))});
  }
  return chart;
}

}  // namespace thinwire::train_gpt
