// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

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

/// A whole number written as one (1.0 and 1e3 are not), within the type.
[[nodiscard]] std::optional<std::int64_t> integer_in(const Json& value);
/// One of 0 ... kMostSize.
[[nodiscard]] std::optional<std::uint64_t> size_in(const Json& value);
/// An array of up to kMostDimensions sizes.
[[nodiscard]] std::optional<std::vector<std::size_t>> shape_in(
    const Json& value);
/// Elements, if they are at most kMostSize.
[[nodiscard]] std::optional<std::uint64_t> elements_of(
    std::span<const std::size_t> shape) noexcept;
/// An array of what `to_json` makes of each item.
template <class Items, class ToJson>
[[nodiscard]] Json list_of(const Items& items, const ToJson& to_json) {
  Json list;
  list.kind = Json::Kind::kArray;
  for (const auto& item : items) list.elements.push_back(to_json(item));
  return list;
}
/// "[768, 3072]"
[[nodiscard]] Json to_json(std::span<const std::size_t> shape);

}  // namespace thinwire::checkpoint
