// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/report/units.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string_view>

namespace thinwire::train_gpt {
namespace {

constexpr double kStep = 1000;
// From here on three digits would round up to the next unit.
constexpr double kRoundsUp = 999.5;

struct Scaled {
  std::string digits;
  std::size_t unit = 0;
};

Scaled scale(double value, std::size_t units) {
  std::size_t unit = 0;
  while (value >= kRoundsUp && unit + 1 < units) {
    value /= kStep;
    ++unit;
  }
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return {fmt::format("{:.{}f}", value, decimals), unit};
}

}  // namespace

std::string format_bytes(double bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "KB", "MB", "GB",
                                                      "TB"};
  const Scaled scaled = scale(bytes, kUnits.size());
  return fmt::format("{} {}", scaled.digits, kUnits[scaled.unit]);
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<long long>(std::llround(seconds));
  const long long minutes = whole / 60;
  if (whole < 60) return fmt::format("{} s", whole);
  if (minutes < 60) return fmt::format("{}:{:02}", minutes, whole % 60);
  return fmt::format("{}:{:02}:{:02}", minutes / 60, minutes % 60, whole % 60);
}

std::string format_count(double count) {
  constexpr std::array<std::string_view, 4> kUnits = {"", "k", "M", "G"};
  const Scaled scaled = scale(count, kUnits.size());
  return fmt::format("{}{}", scaled.digits, kUnits[scaled.unit]);
}

}  // namespace thinwire::train_gpt
