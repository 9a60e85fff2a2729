// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/removed_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/json_text.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint {

namespace {

constexpr std::string_view kSection = "thinwire";

// A removed option, and the JSON value that now always applies. If `kept` is
// empty, the option did not change results, and a state with any value loads.
struct RemovedOption {
  std::string_view name;
  std::string_view kept;
};
constexpr RemovedOption kRemoved[] = {{"variance_refresh", "0"},
                                      {"exchanged", "\"momentum\""},
                                      {"scale", "\"rms\""},
                                      {"calibrated_clipping", "true"},
                                      {"compressed_during_backward", ""}};

std::optional<JsonValue> parsed(const std::string& config) {
  try {
    return read_json(config);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

bool is_removed_option(std::string_view path) {
  return std::ranges::any_of(kRemoved, [&](const RemovedOption& option) {
    return path == fmt::format("{}.{}", kSection, option.name);
  });
}

void require_no_removed_option(const std::string& config) {
  const std::optional<JsonValue> file = parsed(config);
  const JsonValue* const own = file ? find_member(*file, kSection) : nullptr;
  if (own == nullptr) return;
  for (const RemovedOption& option : kRemoved) {
    const JsonValue* const value = find_member(*own, option.name);
    if (value == nullptr || option.kept.empty() ||
        brief_json(*value) == option.kept)
      continue;
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("the checkpoint was saved with {} = {}, an option "
                            "that no longer exists; load its weights alone "
                            "(what = kWeights; Python: weights_only=True)",
                            option.name, brief_json(*value)));
  }
}

}  // namespace thinwire::checkpoint
