// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/units.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string_view>

namespace thinwire::train_gpt {
namespace {

// Returns three digits and one of five units.
std::string scaled(double value, std::string_view space,
                   const std::array<std::string_view, 5>& units) {
  std::size_t unit = 0;
  // Three digits of such values would round up to the next unit.
  while (value >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}{}", value, decimals, space, units[unit]);
}

}  // namespace

std::string format_bytes(double bytes) {
  return scaled(bytes, " ", {"B", "KB", "MB", "GB", "TB"});
}

std::string format_count(double count) {
  return scaled(count, "", {"", "k", "M", "G", "T"});
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<long long>(std::llround(seconds));
  const long long minutes = whole / 60;
  if (whole < 60) return fmt::format("{} s", whole);
  if (minutes < 60) return fmt::format("{}:{:02}", minutes, whole % 60);
  return fmt::format("{}:{:02}:{:02}", minutes / 60, minutes % 60, whole % 60);
}

}  // namespace thinwire::train_gpt
