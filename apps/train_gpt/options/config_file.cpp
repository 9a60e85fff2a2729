// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/options/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/train_gpt/options/usage_error.h"
#include "core/edit_distance.h"

namespace thinwire::train_gpt {
namespace {

std::string scalar(const std::string& where, const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number() || value.is_boolean()) return value.dump();
  throw UsageError(
      fmt::format("{} must be a number, a string, true or false, got {}", where,
                  value.dump()));
}

}  // namespace

std::vector<ConfigEntry> parse_flags(const std::string& file,
                                     std::string_view text) {
  const nlohmann::json section = nlohmann::json::parse(text);
  std::vector<ConfigEntry> entries;
  for (const auto& [key, value] : section.items()) {
    ConfigEntry entry{.flag = key, .values = {}};
    std::replace(entry.flag.begin(), entry.flag.end(), '_', '-');
    const std::string where = fmt::format("{}: train_gpt.{}", file, key);
    if (value.is_array()) {
      for (const auto& element : value) {
        entry.values.push_back(scalar(where, element));
      }
    } else {
      entry.values.push_back(scalar(where, value));
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::string nearest(std::string_view word,
                    const std::vector<std::string>& known) {
  const auto edits = [word](const std::string& other) {
    // "warmup" means "warmup-steps", however long the rest.
    if (!word.empty() && other.starts_with(word)) return std::size_t{0};
    return edit_distance(word, other);
  };
  return *std::min_element(
      known.begin(), known.end(),
      [&](const auto& a, const auto& b) { return edits(a) < edits(b); });
}

}  // namespace thinwire::train_gpt
