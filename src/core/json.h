// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
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

/// Throws Error(kInvalidArgument) saying where and what for anything that is
/// not one JSON value, for an object with a key twice or more than 4096 keys,
/// and for values nested more than 32 deep.
[[nodiscard]] Json parse_json(std::string_view text);
/// With two spaces per level.
[[nodiscard]] std::string write_json(const Json& value);
/// The same on one line, cut to about 60 bytes: for messages.
[[nodiscard]] std::string brief_json(const Json& value);

}  // namespace thinwire
