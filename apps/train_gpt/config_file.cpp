// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "apps/train_gpt/usage_error.h"

namespace thinwire::train_gpt {
namespace {

constexpr std::string_view kSection = "train_gpt";

std::string scalar(const std::string& where, const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number() || value.is_boolean()) return value.dump();
  throw UsageError(
      fmt::format("{} must be a number, a string, true or false, got {}", where,
                  value.dump()));
}

}  // namespace

std::vector<ConfigEntry> parse_config(const std::string& name,
                                      std::string_view text) {
  nlohmann::json config;
  try {
    config = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    throw UsageError(fmt::format("{}: {}", name, error.what()));
  }
  if (!config.is_object()) {
    throw UsageError(
        fmt::format("{}: must be an object, got {}", name, config.dump()));
  }
  for (const auto& item : config.items()) {
    if (item.key() != kSection) {
      throw UsageError(fmt::format(
          "{}: '{}' is not supported yet; this version reads the object '{}' "
          "only",
          name, item.key(), kSection));
    }
  }
  const nlohmann::json section =
      config.value(std::string(kSection), nlohmann::json::object());
  if (!section.is_object()) {
    throw UsageError(fmt::format("{}: '{}' must be an object, got {}", name,
                                 kSection, section.dump()));
  }
  std::vector<ConfigEntry> entries;
  for (const auto& [key, value] : section.items()) {
    ConfigEntry entry{.flag = key, .values = {}};
    std::replace(entry.flag.begin(), entry.flag.end(), '_', '-');
    const std::string where = fmt::format("{}: {}.{}", name, kSection, key);
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

std::vector<ConfigEntry> read_config(const std::string& path) {
  const std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    throw UsageError(fmt::format("--config: cannot read '{}'", path));
  }
  return parse_config(path, text.str());
}

std::string nearest(std::string_view word,
                    const std::vector<std::string>& known) {
  const auto edits = [word](const std::string& other) {
    // "warmup" means "warmup-steps", however long the rest.
    if (!word.empty() && other.starts_with(word)) return std::size_t{0};
    std::vector<std::size_t> row(other.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 0; i < word.size(); ++i) {
      std::size_t diagonal = row[0]++;
      for (std::size_t j = 0; j < other.size(); ++j) {
        const std::size_t replaced = diagonal + (word[i] != other[j] ? 1 : 0);
        diagonal = row[j + 1];
        row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, replaced});
      }
    }
    return row.back();
  };
  return *std::min_element(
      known.begin(), known.end(),
      [&](const auto& a, const auto& b) { return edits(a) < edits(b); });
}

}  // namespace thinwire::train_gpt
