// SPDX-License-Identifier: Apache-2.0
#include "thinwire/plan/plan_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/json_text.h"

namespace thinwire::plan {

namespace {

constexpr std::int64_t kLongRun = 10000;
constexpr double kLargeModel = 5e6;  // for which low rank saves enough

std::string_view exchange_of(const Prediction& p) {
  return p.is_by_host ? "by_host" : "flat";
}

std::string milliseconds(double seconds) {
  const double ms = seconds * 1e3;
  return fmt::format("{:.{}f}", ms, ms < 10 ? 2 : ms < 1000 ? 1 : 0);
}

std::string time_text(double seconds) {
  constexpr std::pair<double, const char*> kUnits[] = {
      {86400, "d"}, {3600, "h"}, {60, "min"}};
  for (const auto& [unit, name] : kUnits)
    if (seconds >= 2 * unit)
      return fmt::format("{:.1f} {}", seconds / unit, name);
  return fmt::format("{:.1f} s", seconds);
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1000;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 2, kUnits[unit]);
}

std::string break_even_text(const Prediction& p) {
  if (p.way == Way::kExact) return "-";
  if (p.break_even_gbps == 0) return "not faster";
  if (std::isinf(p.break_even_gbps)) return "always faster";
  return fmt::format("{:.3g} Gbit/s", p.break_even_gbps);
}

// Returns notes on facts that the columns do not show.
std::string notes_on(std::span<const Prediction> all) {
  std::string text =
      "break-even: against exact averages with the same exchange; always "
      "faster: at 1 Tbit/s too; not faster: on no card from 1 Mbit/s to 1 "
      "Tbit/s\n";
  for (const Prediction& p : all) {
    if (p.way == Way::kOuter && !p.is_by_host)
      text += fmt::format(
          "{}: means over its steps after the warm-up, at one sync in {:.4g} "
          "steps; it costs loss, so `fastest` leaves it out in runs below {} "
          "steps\n",
          name_of(p), p.steps_per_exchange, kLongRun);
    if (p.way == Way::kLowRank && !p.is_by_host && p.parameters < kLargeModel)
      text += fmt::format(
          "{}: it costs loss where matrices are small, so `fastest` leaves it "
          "out in models below {:.0g} parameters\n",
          name_of(p), kLargeModel);
    if (p.way == Way::kLowRank && !p.is_by_host && !p.has_factors)
      text += fmt::format(
          "{}: factors of so many matrices would have half of their elements "
          "or more, so all elements travel in 8 bits\n",
          name_of(p));
    if (p.way != Way::kZeroOneAdam || p.is_by_host) continue;
    text += fmt::format("{}: means over its steps, counted ", name_of(p));
    text += p.steps_per_variance_step > 0
                ? fmt::format(
                      "before its freeze, at one variance step in "
                      "{:.4g} steps\n",
                      p.steps_per_variance_step)
                : fmt::format("after its freeze, at one sync in {:.4g} steps\n",
                              p.steps_per_exchange);
  }
  return text;
}

std::string over_bits(const PlannedRun& run) {
  return run.warmup_bits == 0 ? ""
                              : fmt::format(", over {} bits", run.warmup_bits);
}

// Returns the number of steps of each kind in a run.
std::string notes_on_runs(std::span<const Prediction> all) {
  std::string text;
  for (const Prediction& p : all) {
    const PlannedRun& run = *p.run;
    if (p.is_by_host || run.compressed_steps == 0) continue;
    text += fmt::format("{}: {} steps of the run are exact{}, {} compressed",
                        name_of(p), run.exact_steps, over_bits(run),
                        run.compressed_steps);
    if (run.local_steps > 0) text += fmt::format(", {} local", run.local_steps);
    text += '\n';
  }
  return text;
}

constexpr const char* kOfRun = "{:>11}{:>12}";
constexpr const char* kLine = "{:>10}{:>12}{:>9}{:>12}  {}\n";

std::string head_of(bool has_run) {
  return fmt::format("{:<14}{:<9}", "way", "exchange") +
         (has_run ? fmt::format(kOfRun, "whole run", "sent/run") : "") +
         fmt::format(kLine, "ms/step", "sent/rank", "rounds", "memory",
                     "break-even");
}

std::string line_of(const Prediction& p) {
  std::string text = fmt::format("{:<14}{:<9}", name_of(p), exchange_of(p));
  if (p.run)
    text += fmt::format(kOfRun, time_text(p.run->seconds),
                        bytes_text(p.run->bytes));
  return text + fmt::format(kLine, milliseconds(p.step_seconds),
                            bytes_text(p.traffic.bytes),
                            fmt::format("{:.4g}", p.traffic.rounds),
                            bytes_text(p.memory.total()), break_even_text(p));
}

JsonValue json_of_run(const PlannedRun& run) {
  return {{"run_seconds", short_number(run.seconds)},
          {"run_bytes_sent", short_number(run.bytes)},
          {"run_steps",
           {{"exact", run.exact_steps},
            {"compressed", run.compressed_steps},
            {"local", run.local_steps}}},
          {"warmup_bits", run.warmup_bits}};
}

bool is_faster(const Prediction& a, const Prediction& b) {
  if (a.run && b.run) return a.run->seconds < b.run->seconds;
  return a.step_seconds < b.step_seconds;
}

// Sorts by the time of the run, if known.
std::vector<Prediction> ranked(std::span<const Prediction> all) {
  std::vector<Prediction> sorted(all.begin(), all.end());
  if (all.front().run)
    std::stable_sort(sorted.begin(), sorted.end(), is_faster);
  return sorted;
}

std::int64_t steps_of(const PlannedRun& run) {
  return run.exact_steps + run.compressed_steps + run.local_steps;
}

// An outer loop increases the loss of short runs, and low rank increases the
// loss of small models.
bool is_left_out(const Prediction& p) {
  if (p.way == Way::kLowRank) return p.parameters < kLargeModel;
  return p.way == Way::kOuter && (!p.run || steps_of(*p.run) < kLongRun);
}

}  // namespace

const Prediction& fastest(std::span<const Prediction> all) {
  return *std::min_element(all.begin(), all.end(),
                           [](const auto& a, const auto& b) {
                             if (is_left_out(a) != is_left_out(b))
                               return is_left_out(b);
                             return is_faster(a, b);
                           });
}

std::string plan_table(std::span<const Prediction> all) {
  const Prediction& best = fastest(all);
  std::string text = head_of(best.run.has_value());
  for (const Prediction& p : ranked(all)) text += line_of(p);
  text += notes_on(all);
  if (best.run) text += notes_on_runs(all);
  text += fmt::format("fastest: {}, {}, ", name_of(best), exchange_of(best));
  return text + (best.run ? fmt::format("{} for {} steps\n",
                                        time_text(best.run->seconds),
                                        steps_of(*best.run))
                          : fmt::format("{} ms per step\n",
                                        milliseconds(best.step_seconds)));
}

std::string plan_json(std::span<const Prediction> all) {
  std::string text;
  for (const Prediction& p : ranked(all)) {
    JsonValue line{
        {"way", name_of(p)},
        {"exchange", exchange_of(p)},
        {"ms_per_step", short_number(p.step_seconds * 1e3)},
        {"bytes_sent", short_number(p.traffic.bytes)},
        {"bytes_between_hosts", short_number(p.traffic.bytes_between_hosts)},
        {"messages", short_number(p.traffic.messages)},
        {"rounds", short_number(p.traffic.rounds)},
        {"memory_bytes", short_number(p.memory.total())},
        {"break_even_gbps", std::isinf(p.break_even_gbps)
                                ? JsonValue()
                                : short_number(p.break_even_gbps)}};
    if (p.run) line.update(json_of_run(*p.run));
    text += compact_json(line) + '\n';
  }
  const Prediction& best = fastest(all);
  return text +
         compact_json(JsonValue{{"fastest", name_of(best)},
                                {"exchange", exchange_of(best)},
                                {"has_spare_core", best.has_spare_core}}) +
         '\n';
}

}  // namespace thinwire::plan
