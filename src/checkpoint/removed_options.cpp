// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/removed_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/json.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint {

namespace {

constexpr std::string_view kSection = "thinwire";

// A removed option, and the value as JSON that now always holds.
struct RemovedOption {
  std::string_view name;
  std::string_view kept;
};
constexpr RemovedOption kRemoved[] = {{"variance_refresh", "0"},
                                      {"exchanged", "\"momentum\""},
                                      {"scale", "\"rms\""},
                                      {"calibrated_clipping", "true"}};

std::optional<Json> parsed(const std::string& config) {
  try {
    return parse_json(config);
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
  const std::optional<Json> file = parsed(config);
  const Json* const own = file ? file->find(kSection) : nullptr;
  if (own == nullptr) return;
  for (const RemovedOption& option : kRemoved) {
    const Json* const value = own->find(option.name);
    if (value == nullptr || brief_json(*value) == option.kept) continue;
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("the checkpoint was saved with {} = {}, an option "
                            "that no longer exists; load its weights alone "
                            "(what = kWeights; Python: weights_only=True)",
                            option.name, brief_json(*value)));
  }
}

}  // namespace thinwire::checkpoint
