// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <chrono>
#include <ctime>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "apps/thinwire/checkpoint/commands.h"
#include "apps/thinwire/checkpoint/json_lines.h"
#include "checkpoint/commit/root_directory.h"
#include "thinwire/checkpoint/inspect.h"

namespace thinwire::apps::checkpoint_tool {

namespace {

// Returns the time since "2026-09-01T12:00:00Z", or "" if the text has another
// form.
std::string age_of(const std::string& written) {
  std::tm then{};
  std::istringstream text(written);
  text >> std::get_time(&then, "%Y-%m-%dT%H:%M:%SZ");
  if (text.fail()) return "";
  const auto seconds = static_cast<std::int64_t>(
      std::difftime(std::time(nullptr), timegm(&then)));
  if (seconds < 0) return "0 s";
  if (seconds < 120) return fmt::format("{} s", seconds);
  if (seconds < 2 * 3600) return fmt::format("{} min", seconds / 60);
  if (seconds < 2 * 86400) return fmt::format("{} h", seconds / 3600);
  return fmt::format("{} d", seconds / 86400);
}

}  // namespace

std::string size_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KB", "MB", "GB", "TB", "PB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes)
                   : fmt::format("{:.{}f} {}", value, value < 9.95 ? 1 : 0,
                                 kUnits[unit]);
}

std::string name_of(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

bool is_leftover(const std::string& name) {
  using checkpoint::NameKind;
  const NameKind kind = checkpoint::kind_of(name);
  return kind == NameKind::kPartial || kind == NameKind::kDeleting ||
         kind == NameKind::kReplaced;
}

OrderedJson to_json(const checkpoint::Description& d) {
  OrderedJson json{
      {"name", name_of(d.path)}, {"path", d.path}, {"complete", d.complete}};
  if (!d.complete) {
    json["problem"] = d.problem;
    return json;
  }
  json.update({{"step", d.step},
               {"save_index", d.save_index},
               {"written", d.written},
               {"ranks", d.world},
               {"optimizer", d.optimizer},
               {"semantics", d.semantics},
               {"phase", d.phase},
               {"precision", d.precision},
               {"zero_stage", d.zero_stage},
               {"steps_behind", d.steps_behind},
               {"parameters", d.parameters},
               {"bytes", d.bytes},
               {"id", d.id},
               {"run", d.run},
               {"library", d.library}});
  return json;
}

void list(const std::string& root, bool json) {
  const std::vector<checkpoint::Description> all = checkpoint::inspect(root);
  if (json) {
    for (const auto& one : all) print_line(to_json(one));
    return;
  }
  constexpr const char* kRow =
      "{:>10}  {:>7}  {:>5}  {:<16} {:<10} {:>7}  {}\n";
  fmt::print(kRow, "step", "age", "ranks", "optimizer", "phase", "size",
             "directory");
  for (const auto& d : all)
    if (d.complete)
      fmt::print(kRow, d.step, age_of(d.written), d.world, d.optimizer, d.phase,
                 size_text(d.bytes), name_of(d.path));
  for (const auto& d : all)
    if (!d.complete)
      fmt::print("{:>10}  {}: {}\n",
                 is_leftover(name_of(d.path)) ? kLeftover : kDamaged,
                 name_of(d.path), d.problem);
}

}  // namespace thinwire::apps::checkpoint_tool
