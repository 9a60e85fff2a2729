// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// A JSON value that others may look at without the parser's headers. Numbers
/// keep the text they were written as, so that a value passed on is untouched.
namespace thinwire {

struct Json {
  enum class Kind { kNull, kBoolean, kNumber, kText, kArray, kObject };
  using Member = std::pair<std::string, Json>;

  Kind kind = Kind::kNull;
  bool boolean = false;
  double number = 0;
  std::string text{};  ///< Of a number, how it is written; of a text, itself.
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

/// What a text may ask for.
struct JsonLimits {
  std::size_t members = 4096;  ///< Of one object.
  std::size_t depth = 32;      ///< Values inside of one another.
  /// Values in the tree that is kept: each takes a hundred bytes or so.
  std::size_t values = ~std::size_t{0};
};

/// Throws Error(kInvalidArgument) saying where and what for anything that is
/// not one JSON value, for an object with a key twice, and for what is beyond
/// `limits`.
[[nodiscard]] Json parse_json(std::string_view text,
                              const JsonLimits& limits = {});

/// Gets a member of the outermost object, or an element of one.
using TakeMember =
    std::function<void(const std::string& name, Json value, bool is_element)>;
/// The same for a text that is one object and too large for a tree: its members
/// are handed over as soon as they are complete. Of a member that is an array,
/// elements that are objects or arrays come first, one by one, then the array
/// without them. `limits.values` holds for each piece. What `take` throws ends
/// it.
void parse_json_members(std::string_view text, const JsonLimits& limits,
                        const TakeMember& take);

/// With two spaces per level.
[[nodiscard]] std::string write_json(const Json& value);
/// On one line.
[[nodiscard]] std::string compact_json(const Json& value);
/// The same, cut to about 60 bytes: for messages.
[[nodiscard]] std::string brief_json(const Json& value);

}  // namespace thinwire
