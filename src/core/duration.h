// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace thinwire {

/// Texts that duration_from() accepts, for messages.
inline constexpr const char* kDurations =
    "a positive integer with a unit ms, s, min or h, at most 1000h";

/// Parses "500ms", "5s", "10min" or "2h". Returns nothing for other texts.
[[nodiscard]] std::optional<std::chrono::milliseconds> duration_from(
    std::string_view text) noexcept;

/// Returns a text that duration_from() reads as `duration`, in the largest unit
/// that needs no fraction.
[[nodiscard]] std::string to_text(std::chrono::milliseconds duration);

}  // namespace thinwire
