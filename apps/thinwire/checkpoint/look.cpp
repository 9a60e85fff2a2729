// SPDX-License-Identifier: Apache-2.0
// The commands that look at checkpoints: ls, show, verify.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <iomanip>
#include <sstream>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "apps/thinwire/checkpoint/commands.h"
#include "checkpoint/commit/find_checkpoints.h"
#include "checkpoint/format/fields.h"
#include "checkpoint/read/verified_file.h"
#include "thinwire/checkpoint/inspect.h"

namespace thinwire::apps::checkpoint_tool {

namespace {

using checkpoint::Damage;
using checkpoint::Manifest;
using checkpoint::Verdict;

// States of a directory that is no checkpoint. A crash may leave a partial one;
// any other is damaged.
constexpr const char* kLeftover = "partial";
constexpr const char* kDamaged = "damaged";

bool is_leftover(const std::string& name) {
  using checkpoint::NameKind;
  const NameKind kind = checkpoint::kind_of(name);
  return kind != NameKind::kFinal && kind != NameKind::kForeign;
}

std::string name_of(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

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

// Returns a text with all bits of the scalar.
std::string text_of(const StateDict::Scalar& scalar) {
  return std::visit([](const auto& value) { return fmt::format("{}", value); },
                    scalar);
}

void print_scalars(std::string_view title, const StateDict& state) {
  for (const auto& [name, value] : state.scalars())
    fmt::print("{:<12}{} = {}\n", title, name, text_of(value));
}

// Prints the application's arrays, which are tensors of the files. The manifest
// has only its numbers.
void print_extra_arrays(const std::string& directory, const Manifest& m) {
  for (const auto& file : m.files) {
    if (!file.name.starts_with("state-")) continue;
    const checkpoint::VerifiedFile opened(checkpoint::posix_file_system(),
                                          directory, file);
    for (const auto& tensor : opened.header().tensors)
      if (tensor.name.starts_with(checkpoint::kExtra) ||
          tensor.name.starts_with(checkpoint::kExtraOfRank))
        fmt::print("{:<12}{} in {}: {}, {} bytes\n", "extra", tensor.name,
                   file.name, to_string(tensor.type.dtype), tensor.bytes);
  }
}

void print_manifest(const std::string& directory, const Manifest& m) {
  const auto line = [](std::string_view name, const auto& value) {
    fmt::print("{:<12}{}\n", name, value);
  };
  line("checkpoint", directory);
  line("step", m.step);
  line("written", m.written + ", by Thinwire " + m.library +
                      (m.durable ? "" : ", not flushed to the disk"));
  line("id",
       m.id + ", save " + std::to_string(m.save_index) + " of run " + m.run);
  line("ranks", m.world);
  line("optimizer",
       fmt::format("{}, {}, {}, {}, ZeRO stage {}", m.optimizer, m.semantics,
                   m.phase, m.precision, m.zero_stage));
  if (const std::int64_t steps = checkpoint::steps_left_out(m); steps > 0)
    line("weights", fmt::format("{} local steps behind", steps));
  std::uint64_t elements = 0;
  for (const auto& parameter : m.parameters)
    elements += checkpoint::elements_of(parameter.shape).value();
  line("parameters", fmt::format("{}, {} elements; {} others, {} aliases",
                                 m.parameters.size(), elements, m.others.size(),
                                 m.aliases.size()));
  for (const auto& array : m.arrays)
    line("array",
         fmt::format("{}: {}, by {}, {}", array.name, to_string(array.dtype),
                     to_string(array.axis), to_string(array.sharing)));
  print_scalars("scalar", m.scalars);
  print_scalars("extra", m.extra);
  print_extra_arrays(directory, m);
  for (const auto& file : m.files)
    line("file", fmt::format("{}: {}", file.name, size_text(file.bytes)));
}

void print(const std::string& path, const Verdict& verdict, bool json) {
  if (json) {
    OrderedJson damages = OrderedJson::array();
    for (const Damage& damage : verdict.damages)
      damages.push_back({{"file", damage.file},
                         {"begin", damage.begin},
                         {"end", damage.end},
                         {"what", damage.what}});
    return print_line({{"path", path},
                       {"good", verdict.good()},
                       {"bytes", verdict.bytes},
                       {"nonfinite", verdict.nonfinite},
                       {"damages", damages}});
  }
  for (const Damage& damage : verdict.damages)
    fmt::print("{}   {}/{}: bytes {}-{}: {}\n", kDamaged, path, damage.file,
               damage.begin, std::max(damage.end, damage.begin + 1) - 1,
               damage.what);
  if (verdict.good())
    fmt::print("good      {}: {}{}\n", path, size_text(verdict.bytes),
               verdict.nonfinite == 0
                   ? ""
                   : fmt::format(", {} values are NaN or infinite",
                                 verdict.nonfinite));
}

Verdict verdict_on(const std::string& path,
                   const checkpoint::FoundCheckpoint& found) {
  try {
    return checkpoint::verify(path);
  } catch (const std::exception&) {  // no manifest
    Verdict verdict;
    verdict.damages.push_back({"manifest.json", 0, 0, found.problem});
    return verdict;
  }
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

void show(const std::string& path, bool json) {
  auto& files = checkpoint::posix_file_system();
  const std::string directory = checkpoint::complete_one(files, path);
  if (!json)
    return print_manifest(directory,
                          checkpoint::read_manifest(files, directory));
  // Prints all of the manifest except the hashes.
  OrderedJson manifest = OrderedJson::parse(
      checkpoint::read_text(files, directory + "/manifest.json", false,
                            checkpoint::kMostManifestBytes));
  for (auto& file : manifest["files"]) file.erase("xxh3");
  manifest.erase("manifest_xxh3");
  OrderedJson all{{"path", directory}};
  all.update(manifest);
  print_line(all);
}

void verify(const std::string& path, bool json) {
  const checkpoint::Located found =
      checkpoint::locate(checkpoint::posix_file_system(), path);
  std::size_t bad = 0;
  for (const auto& one : found.checkpoints) {
    if (found.is_root && !one.complete && is_leftover(one.name)) {
      if (!json)
        fmt::print("{}   {}: {}\n", kLeftover, found.path_of(one), one.problem);
      continue;
    }
    const Verdict verdict = verdict_on(found.path_of(one), one);
    print(found.path_of(one), verdict, json);
    if (!verdict.good()) ++bad;
  }
  if (bad > 0)
    throw std::runtime_error(
        fmt::format("{} of {} checkpoints {} damaged; each bad range has a "
                    "line above",
                    bad, found.checkpoints.size(), bad == 1 ? "is" : "are"));
}

}  // namespace thinwire::apps::checkpoint_tool
