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

/// Values of headers and manifests. A value of another type than required is
/// refused.
namespace thinwire::checkpoint {

/// Integers above it are no longer exact in other people's JSON readers.
inline constexpr std::uint64_t kMostSize = std::uint64_t{1} << 53;
inline constexpr std::size_t kMostDimensions = 16;
inline constexpr std::size_t kMostNameBytes = 1024;

/// Throws Error(kCorruptCheckpoint): "FILE: WHAT".
[[noreturn]] void corrupt(const std::string& file, const std::string& what);

[[nodiscard]] bool is_utf8(std::string_view text);
/// Returns the fault of a tensor's or array's name, or an empty text.
[[nodiscard]] std::string_view problem_of_name(std::string_view name);
/// Returns whether `name` matches [A-Za-z0-9][A-Za-z0-9._-]{0,127}, which
/// cannot leave a directory.
[[nodiscard]] bool is_file_name(std::string_view name) noexcept;

/// One of 0 ... kMostSize.
[[nodiscard]] std::optional<std::uint64_t> size_in(const JsonValue& value);
/// An array of up to kMostDimensions sizes.
[[nodiscard]] std::optional<std::vector<std::size_t>> shape_in(
    const JsonValue& value);
/// Elements, if they are at most kMostSize.
[[nodiscard]] std::optional<std::uint64_t> elements_of(
    std::span<const std::size_t> shape) noexcept;

}  // namespace thinwire::checkpoint
