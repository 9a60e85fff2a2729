// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/json_text.h"
#include "thinwire/core/error.h"

/// Reader and Writer have the same members, so that one function per section
/// says which key is which field, for both ways (fields.h).
namespace thinwire::config {

/// The numbers that a key may have; finite ones in any case.
struct Limits {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above_least = false;  ///< `least` itself is excluded.
  bool below_most = false;   ///< `most` itself is excluded.
  std::string_view word{};   ///< A text that counts as the integer -1.

  [[nodiscard]] bool allow(double value) const;
  /// "number in [0, 1)"; several: "numbers in [0, 1)".
  [[nodiscard]] std::string text(bool several = false) const;
  /// "integer >= 1": for `given`, with the bound that it exceeds.
  [[nodiscard]] std::string integer_text(double given) const;
};
inline constexpr Limits kNotNegative{.least = 0};
inline constexpr Limits kPositive{.least = 0, .above_least = true};
inline constexpr Limits kAtLeastOne{.least = 1};
inline constexpr Limits kFraction{.least = 0, .most = 1};
inline constexpr Limits kStages{.least = 0, .most = 2};
inline constexpr Limits kDecayRate{.least = 0, .most = 1, .below_most = true};
/// A count of steps, or kAutoFreeze.
inline constexpr Limits kFreezeSteps{.least = 1, .word = "auto"};

/// The texts of an enumeration, which a file may have in any case. Several may
/// mean the same; the first is written.
template <class E>
using Choices = std::span<const std::pair<std::string_view, E>>;

/// The text with letters of ASCII in lower case.
[[nodiscard]] std::string lower(std::string_view text);

/// A value is refused because of another key's value.
class Conflict : public Error {
 public:
  using Error::Error;
};

/// A value is of another type than its field.
class WrongType : public Error {
 public:
  using Error::Error;
};

/// How errors name a member: as a path of a file, "outer.momentum", or as in
/// Python, "outer['momentum']".
enum class Paths { kFile, kPython };

/// Sets fields from an object's members and leaves those alone that it has not.
/// Throws Error(kInvalidArgument) with the path for values out of range, and
/// WrongType for other types.
class Reader {
 public:
  /// `object` may be null: it has nothing then.
  Reader(const JsonValue* object, std::string path, Paths paths = Paths::kFile);

  [[nodiscard]] Reader section(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const;
  [[nodiscard]] std::string path_of(std::string_view name) const;
  /// The member is this text, which is in lower case.
  [[nodiscard]] bool is_text(std::string_view name,
                             std::string_view text) const;
  /// From here on field() and choice(), also of sections, leave a value as it
  /// is where they would reject what the file says: it has no effect.
  void be_lenient() noexcept { lenient_ = true; }
  /// Throws Error("PATH must be RANGE, got VALUE").
  [[noreturn]] void reject(std::string_view name, std::string_view range) const;
  /// Throws the same text as a WrongType.
  [[noreturn]] void reject_type(std::string_view name,
                                std::string_view range) const;
  /// Throws the same text as a Conflict.
  [[noreturn]] void exclude(std::string_view name,
                            std::string_view range) const;

  void field(std::string_view name, bool& value) const;
  void field(std::string_view name, double& value, const Limits& limits) const;
  void field(std::string_view name, std::int64_t& value,
             const Limits& limits) const;
  void field(std::string_view name, std::size_t& value,
             const Limits& limits) const;
  void field(std::string_view name, int& value, const Limits& limits) const;
  /// Reads or writes a text unchanged, including its case.
  void text(std::string_view name, std::string& value) const;
  /// "10min": see duration_from().
  void duration(std::string_view name, std::chrono::milliseconds& value) const;
  /// Two numbers in an array.
  void pair(std::string_view name, double& first, double& second,
            const Limits& limits) const;
  void pair(std::string_view name, std::optional<double>& first,
            std::optional<double>& second, const Limits& limits) const {
    if (has(name)) pair(name, first.emplace(), second.emplace(), limits);
  }
  template <class T>
  void field(std::string_view name, std::optional<T>& value,
             const Limits& limits) const {
    if (!has(name)) return;
    T read{};
    field(name, read, limits);
    value = read;
  }
  template <class E>
  void choice(std::string_view name, E& value, Choices<E> choices) const {
    if (!has(name)) return;
    const std::string text = text_of(name);
    std::string known;
    for (const auto& [choice, meaning] : choices) {
      if (lower(choice) == text) {
        value = meaning;
        return;
      }
      known += (known.empty() ? "" : ", ") + std::string(choice);
    }
    if (!lenient_) reject(name, "one of " + known);
  }
  template <class E>
  void choice(std::string_view name, std::optional<E>& value,
              Choices<E> choices) const {
    if (!has(name)) return;
    E read{};
    choice(name, read, choices);
    value = read;
  }

 private:
  [[nodiscard]] std::string refusal(std::string_view name,
                                    std::string_view range) const;
  /// The text of a member, in lower case; empty if it is none.
  [[nodiscard]] std::string text_of(std::string_view name) const;
  /// A number within the limits, or nothing where it is to be left alone.
  [[nodiscard]] std::optional<double> number(std::string_view name,
                                             const JsonValue& value,
                                             const Limits& limits,
                                             bool of_pair = false) const;

  const JsonValue* object_;
  std::string path_;
  Paths paths_;
  bool lenient_ = false;
};

/// Adds fields to an object.
class Writer {
 public:
  explicit Writer(JsonValue& object) : object_(&object) {}

  /// Only once; what is written to it appears at this place.
  [[nodiscard]] Writer section(std::string_view name) const;

  /// A bool, a number or a text.
  template <class T>
  void field(std::string_view name, const T& value, const Limits& = {}) const {
    JsonValue& member = (*object_)[std::string(name)];
    if constexpr (std::is_same_v<T, double>)
      member = short_number(value);
    else
      member = value;
  }
  /// Empty ones, and durations of 0, are left out.
  void text(std::string_view name, std::string_view value) const;
  void duration(std::string_view name, std::chrono::milliseconds value) const;
  void pair(std::string_view name, double first, double second,
            const Limits& = {}) const;
  void pair(std::string_view name, const std::optional<double>& first,
            const std::optional<double>& second, const Limits& = {}) const {
    if (first && second) pair(name, *first, *second);
  }
  template <class T>
  void field(std::string_view name, const std::optional<T>& value,
             const Limits& limits) const {
    if (value.has_value()) field(name, *value, limits);
  }
  template <class E>
  void choice(std::string_view name, E value, Choices<E> choices) const {
    for (const auto& [choice, meaning] : choices) {
      if (meaning != value) continue;
      field(name, choice);
      return;
    }
  }
  template <class E>
  void choice(std::string_view name, const std::optional<E>& value,
              Choices<E> choices) const {
    if (value) choice(name, *value, choices);
  }

 private:
  JsonValue* object_;
};

}  // namespace thinwire::config
