// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

/// JSON text, read with limits and written as Thinwire's files have it. Values
/// are nlohmann's. Sources that look into one include <nlohmann/json.hpp>.
namespace thinwire {

/// A value whose members are in the order written.
using JsonValue = nlohmann::ordered_json;

/// Limits on the contents of a text.
struct JsonLimits {
  std::size_t members = 4096;  ///< Members of one object.
  std::size_t depth = 32;      ///< Levels of nesting.
  /// Values in the tree that is kept: each takes a hundred bytes or so.
  std::size_t values = ~std::size_t{0};
};

/// Throws Error(kInvalidArgument) with place and reason if the text is not one
/// JSON value, repeats a key in an object, or exceeds `limits`.
[[nodiscard]] JsonValue read_json(std::string_view text,
                                  const JsonLimits& limits = {});

/// Receives a member of the outermost object, or an element of one.
using TakeJsonMember = std::function<void(
    const std::string& name, const JsonValue& value, bool is_element)>;
/// Reads one object that is too large for a tree, and passes each member to
/// `take` as soon as it is complete. If a member is an array, its objects and
/// arrays are passed first, one by one, and then the array without them.
/// `limits.values` holds for each piece. An exception of `take` ends the
/// reading.
void read_json_members(std::string_view text, const JsonLimits& limits,
                       const TakeJsonMember& take);

/// Returns the object's member of that name. Null if there is none, or if the
/// value is not an object.
[[nodiscard]] const JsonValue* find_member(const JsonValue& value,
                                           std::string_view name) noexcept;
[[nodiscard]] JsonValue* find_member(JsonValue& value,
                                     std::string_view name) noexcept;
/// Returns a whole number written as one (1.0 and 1e3 are not), within the
/// type.
[[nodiscard]] std::optional<std::int64_t> integer_in(const JsonValue& value);
/// Returns a finite number that is written without ".0" if it is whole.
[[nodiscard]] JsonValue short_number(double value);

/// Returns the text with two spaces per level.
[[nodiscard]] std::string write_json(const JsonValue& value);
/// Returns the text on one line.
[[nodiscard]] std::string compact_json(const JsonValue& value);
/// Returns the text cut to about 60 bytes, for messages.
[[nodiscard]] std::string brief_json(const JsonValue& value);

}  // namespace thinwire
