// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace thinwire {

/// Describes in messages what duration_from() accepts.
inline constexpr const char* kDurations =
    "a positive integer with a unit ms, s, min or h, at most 1000h";

/// "500ms", "5s", "10min", "2h"; nothing for other texts.
[[nodiscard]] std::optional<std::chrono::milliseconds> duration_from(
    std::string_view text) noexcept;

/// The text of which duration_from() makes this: in the largest unit of which
/// it is a whole number.
[[nodiscard]] std::string to_text(std::chrono::milliseconds duration);

}  // namespace thinwire
