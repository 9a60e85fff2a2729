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
#include <vector>

#include "core/json_text.h"
#include "thinwire/core/error.h"

/// Reader and Writer have the same members, so that one function per section
/// (fields.h) both reads and writes the section's fields.
namespace thinwire::config {

/// Range of the finite numbers that a key accepts.
struct Limits {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above_least = false;  ///< `least` itself is excluded.
  bool below_most = false;   ///< `most` itself is excluded.
  std::string_view word{};   ///< Text that stands for the integer -1.

  [[nodiscard]] bool allow(double value) const;
  /// Returns, for example, "number in [0, 1)", or "numbers in [0, 1)" if
  /// `several`.
  [[nodiscard]] std::string text(bool several = false) const;
  /// Returns, for example, "integer >= 1", with the bound that `given` exceeds.
  [[nodiscard]] std::string integer_text(double given) const;
};
inline constexpr Limits kNotNegative{.least = 0};
inline constexpr Limits kPositive{.least = 0, .above_least = true};
inline constexpr Limits kAtLeastOne{.least = 1};
inline constexpr Limits kFraction{.least = 0, .most = 1};
inline constexpr Limits kStages{.least = 0, .most = 2};
inline constexpr Limits kDecayRate{.least = 0, .most = 1, .below_most = true};
/// Limits of a number of steps, or kAutoFreeze.
inline constexpr Limits kFreezeSteps{.least = 1, .word = "auto"};

/// The texts of an enumeration, in lower case. A file may write them in any
/// case. If several texts have the same meaning, a Writer writes the first.
template <class E>
using Choices = std::span<const std::pair<std::string_view, E>>;

/// Returns the text with ASCII letters in lower case.
[[nodiscard]] std::string lower(std::string_view text);

/// Error of a value that another key's value excludes.
class Conflict : public Error {
 public:
  using Error::Error;
};

/// Error of a value whose type is not that of its field.
class WrongType : public Error {
 public:
  using Error::Error;
};

/// Form of the paths in error messages: that of a file, "outer.momentum", or
/// that of Python, "outer['momentum']".
enum class Paths { kFile, kPython };

/// Sets fields from the members of an object. Fields that the object lacks keep
/// their values. Throws Error(kInvalidArgument) with the path for values out of
/// range, and WrongType for other types.
class Reader {
 public:
  /// If `object` is null, the Reader has no members.
  Reader(const JsonValue* object, std::string path, Paths paths = Paths::kFile);

  [[nodiscard]] Reader section(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const;
  /// Appends to `names` every name that is asked for from now on.
  void note_names(std::vector<std::string>& names) noexcept { names_ = &names; }
  /// Returns whether the member is this text, which must be in lower case.
  [[nodiscard]] bool is_text(std::string_view name,
                             std::string_view text) const;
  /// After this call, field() and choice() ignore values that they would
  /// otherwise reject, here and in sections. The caller uses it for values that
  /// have no effect.
  void be_lenient() noexcept { lenient_ = true; }
  /// Throws Error("PATH must be RANGE, got VALUE").
  [[noreturn]] void reject(std::string_view name, std::string_view range) const;
  /// Like reject(), but throws WrongType.
  [[noreturn]] void reject_type(std::string_view name,
                                std::string_view range) const;
  /// Like reject(), but throws Conflict.
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
  /// Reads or writes a duration such as "10min". See duration_from().
  void duration(std::string_view name, std::chrono::milliseconds& value) const;
  /// Reads or writes two numbers in an array.
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
  [[nodiscard]] std::string path_of(std::string_view name) const;
  [[nodiscard]] std::string refusal(std::string_view name,
                                    std::string_view range) const;
  /// Returns the text of a member in lower case, or an empty text if it is not
  /// a text.
  [[nodiscard]] std::string text_of(std::string_view name) const;
  /// Returns a number within the limits, or nothing if the field keeps its
  /// value.
  [[nodiscard]] std::optional<double> number(std::string_view name,
                                             const JsonValue& value,
                                             const Limits& limits,
                                             bool of_pair = false) const;

  const JsonValue* object_;
  std::string path_;
  Paths paths_;
  std::vector<std::string>* names_ = nullptr;
  bool lenient_ = false;
};

/// Adds fields to an object.
class Writer {
 public:
  explicit Writer(JsonValue& object) : object_(&object) {}

  /// Adds an object, which appears at this place in the output. Call once per
  /// name.
  [[nodiscard]] Writer section(std::string_view name) const;

  /// Writes a bool, a number or a text.
  template <class T>
  void field(std::string_view name, const T& value, const Limits& = {}) const {
    JsonValue& member = (*object_)[std::string(name)];
    if constexpr (std::is_same_v<T, double>)
      member = short_number(value);
    else
      member = value;
  }
  /// Leaves out an empty text, or a duration of 0.
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
