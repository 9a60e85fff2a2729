// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json_text.h"

/// Parsing of values in headers and manifests. Values of a wrong type are
/// refused.
namespace thinwire::checkpoint {

/// Larger integers are not exact in JSON readers that use doubles.
inline constexpr std::uint64_t kMostSize = std::uint64_t{1} << 53;
inline constexpr std::size_t kMostDimensions = 16;
inline constexpr std::size_t kMostNameBytes = 1024;

/// Throws Error(kCorruptCheckpoint) with "FILE: WHAT".
[[noreturn]] void corrupt(const std::string& file, const std::string& what);

[[nodiscard]] bool is_utf8(std::string_view text);
/// Returns the fault of a tensor's or array's name, or an empty text.
[[nodiscard]] std::string_view problem_of_name(std::string_view name);
/// Returns whether `name` matches [A-Za-z0-9][A-Za-z0-9._-]{0,127}, which
/// cannot leave a directory.
[[nodiscard]] bool is_file_name(std::string_view name) noexcept;

/// Returns an integer in [0, kMostSize].
[[nodiscard]] std::optional<std::uint64_t> size_in(const JsonValue& value);
/// Returns an array of at most kMostDimensions sizes.
[[nodiscard]] std::optional<std::vector<std::size_t>> shape_in(
    const JsonValue& value);
/// Returns the number of elements if it is at most kMostSize.
[[nodiscard]] std::optional<std::uint64_t> elements_of(
    std::span<const std::size_t> shape) noexcept;

}  // namespace thinwire::checkpoint
