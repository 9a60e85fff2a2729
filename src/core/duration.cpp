// SPDX-License-Identifier: Apache-2.0
#include "core/duration.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <utility>

namespace thinwire {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kMost = std::chrono::hours(1000);
constexpr std::pair<std::string_view, milliseconds> kUnits[] = {
    {"h", std::chrono::hours(1)},
    {"min", std::chrono::minutes(1)},
    {"s", std::chrono::seconds(1)},
    {"ms", milliseconds(1)}};

}  // namespace

std::optional<milliseconds> duration_from(std::string_view text) noexcept {
  std::int64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, count);
  if (error != std::errc() || count < 1) return std::nullopt;
  const std::string_view name(last, static_cast<std::size_t>(end - last));
  for (const auto& [unit, length] : kUnits)
    if (unit == name && count <= kMost / length) return count * length;
  return std::nullopt;
}

std::string to_text(milliseconds duration) {
  for (const auto& [unit, length] : kUnits)
    if (duration % length == milliseconds(0))
      return fmt::format("{}{}", duration / length, unit);
  return {};
}

}  // namespace thinwire
