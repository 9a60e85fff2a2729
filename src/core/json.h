// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json_text.h"

/// A JSON value that others may look at without the parser's headers. Numbers
/// keep the text they were written as, so that a value passed on is untouched.
namespace thinwire {

struct Json {
  enum class Kind { kNull, kBoolean, kNumber, kText, kArray, kObject };
  using Member = std::pair<std::string, Json>;

  Kind kind = Kind::kNull;
  bool boolean = false;
  double number = 0;
  std::string text{};  ///< A number as written, or a string's value.
  std::vector<Json> elements{};
  std::vector<Member> members{};  ///< In the order written.

  [[nodiscard]] static Json of(bool value);
  [[nodiscard]] static Json of(double value);  ///< Finite.
  [[nodiscard]] static Json of(std::int64_t value);
  [[nodiscard]] static Json of(std::string_view value);
  [[nodiscard]] static Json object();

  [[nodiscard]] bool is(Kind other) const noexcept { return kind == other; }
  /// The member of that name, or null.
  [[nodiscard]] const Json* find(std::string_view name) const noexcept;
  /// Appends a member and gives it.
  Json& add(std::string name, Json value);
};

/// Throws Error(kInvalidArgument) with place and reason if the text is not one
/// JSON value, repeats a key in an object, or exceeds `limits`.
[[nodiscard]] Json parse_json(std::string_view text,
                              const JsonLimits& limits = {});

/// Gets a member of the outermost object, or an element of one.
using TakeMember =
    std::function<void(const std::string& name, Json value, bool is_element)>;
/// Parses one object that is too large for a tree, and passes each member to
/// `take` as soon as it is complete. If a member is an array, its objects and
/// arrays are passed first, one by one, and then the array without them.
/// `limits.values` holds for each piece. An exception of `take` ends the
/// parsing.
void parse_json_members(std::string_view text, const JsonLimits& limits,
                        const TakeMember& take);

/// With two spaces per level.
[[nodiscard]] std::string write_json(const Json& value);
/// On one line.
[[nodiscard]] std::string compact_json(const Json& value);
/// Returns the text of `value`, cut to about 60 bytes for messages.
[[nodiscard]] std::string brief_json(const Json& value);

}  // namespace thinwire
