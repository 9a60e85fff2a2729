// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "commands/commands.h"
#include "core/json_text.h"
#include "thinwire/config/config.h"
#include "thinwire/core/error.h"

namespace thinwire::commands {

namespace {

using config::KeyNote;

struct CheckFlags {
  std::string file;
  std::optional<int> ranks;
  bool json = false;
};

constexpr std::string_view kStatuses[] = {"supported", "ignored", "absent",
                                          "rejected"};

std::string_view status_of(const KeyNote& note) {
  return kStatuses[static_cast<std::size_t>(note.kind)];
}

std::string line_of(const KeyNote& note) {
  std::string text = fmt::format("{:<11}", status_of(note));
  // The note of a rejection already names the key and its value.
  if (note.kind == KeyNote::Kind::kRejected) return text + note.note + '\n';
  text += note.path;
  if (!note.value.empty()) text += " = " + brief_json(read_json(note.value));
  if (!note.note.empty()) text += ": " + note.note;
  return text + '\n';
}

std::string json_line_of(const KeyNote& note) {
  JsonValue line{
      {"key", note.path.empty() ? JsonValue() : JsonValue(note.path)},
      {"status", status_of(note)}};
  if (!note.value.empty()) line["value"] = read_json(note.value);
  line["note"] = note.note;
  return compact_json(line) + '\n';
}

// Returns a sentence about the checks that were left out.
std::string_view not_checked(bool is_rejected, bool has_ranks) {
  if (is_rejected)
    return "combinations of keys, and values that depend on a rejected key: "
           "correct the rejected keys, and check again";
  if (!has_ranks)
    return "whether batch sizes and thinwire.ranks_per_host fit the number of "
           "ranks: add --ranks N";
  return {};
}

std::string not_checked_line(std::string_view what, bool as_json) {
  if (what.empty()) return {};
  if (!as_json) return fmt::format("not checked: {}\n", what);
  return compact_json(JsonValue{
             {"key", nullptr}, {"status", "not checked"}, {"note", what}}) +
         '\n';
}

void check(const Front& front, const CheckFlags& flags) {
  // The object "train_gpt" belongs to the example of that name.
  const std::vector<KeyNote> notes =
      config::check_file(flags.file, flags.ranks, {"train_gpt"});
  for (const KeyNote& note : notes)
    front.out << (flags.json ? json_line_of(note) : line_of(note));
  const auto rejected =
      std::count_if(notes.begin(), notes.end(), [](const KeyNote& note) {
        return note.kind == KeyNote::Kind::kRejected;
      });
  front.out << not_checked_line(
      not_checked(rejected > 0, flags.ranks.has_value()), flags.json);
  if (rejected > 0)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} rejected", flags.file, rejected));
}

}  // namespace

void add_config(CLI::App& app, const Front& front) {
  CLI::App* const group =
      app.add_subcommand("config", "Look at configuration files");
  group->require_subcommand(1);
  const auto flags = std::make_shared<CheckFlags>();
  CLI::App* const command = group->add_subcommand(
      "check",
      "Print for each key of a file whether it is supported, ignored or "
      "rejected, and why; exits with 1 if one is rejected");
  command
      ->add_option("FILE", flags->file,
                   "a configuration file of DeepSpeed or Thinwire")
      ->required();
  command
      ->add_option("--ranks", flags->ranks,
                   "also check the keys that depend on the number of ranks")
      ->check(CLI::Range(1, 1'000'000));
  command->add_flag("--json", flags->json,
                    "one JSON object per key, and one for checks left out");
  command->callback([&front, flags] { check(front, *flags); });
}

}  // namespace thinwire::commands
