// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/options/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <variant>

#include "apps/train_gpt/options/usage_error.h"
#include "thinwire/core/error.h"
#include "thinwire/lean/lean_onebit_adam.h"

namespace thinwire::train_gpt {
namespace {

using nlohmann::json;

constexpr const char* kObject = "/thinwire/";

// What is no JSON is a text without its quotes.
json value_of(const std::string& text) {
  json value = json::parse(text, nullptr, false);
  return value.is_discarded() ? json(text) : value;
}

void put(json& file, const std::string& setting) {
  const std::size_t equals = setting.find('=');
  if (equals == 0 || equals == std::string::npos)
    throw UsageError(fmt::format("--set must be KEY=VALUE, got '{}'", setting));
  std::string path = kObject + setting.substr(0, equals);
  std::replace(path.begin(), path.end(), '.', '/');
  try {
    file[json::json_pointer(path)] = value_of(setting.substr(equals + 1));
  } catch (const json::exception&) {  // a part of KEY is no object
    throw UsageError(fmt::format("--set: there is no key thinwire.{}",
                                 setting.substr(0, equals)));
  }
}

}  // namespace

config::Config with_settings(const config::Config& config,
                             const std::vector<std::string>& settings) {
  if (settings.empty()) return config;
  try {
    json file = json::parse(config.to_json());
    for (const std::string& setting : settings) put(file, setting);
    if (std::holds_alternative<lean::LeanOnebitAdamOptions>(config.optimizer) &&
        file["thinwire"]["lean"] == false)
      throw UsageError(
          "--set: thinwire.lean must be true with lean_onebit_adam, got false; "
          "use --optimizer onebit_adam");
    std::vector<config::KeyNote> unneeded;  // of what to_json() writes
    return config::Config::from_json(file.dump(), &unneeded);
  } catch (const Error& error) {
    throw UsageError(fmt::format("--set: {}", error.what()));
  }
}

}  // namespace thinwire::train_gpt
