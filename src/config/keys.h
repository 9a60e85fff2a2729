// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "thinwire/config/config.h"

/// What becomes of each key of a configuration file: one table, which the
/// reader obeys and docs/guide/from-deepspeed.md shows.
namespace thinwire::config {

enum class KeyStatus {
  kSupported,
  kIgnored,   ///< Accepted, without effect: it cannot change results.
  kRejected,  ///< Unless it asks for what Thinwire does anyway.
};

enum class KeyValue { kAny, kBoolean };

struct KeyRule {
  std::string_view path;  ///< "fp16.loss_scale".
  KeyStatus status = KeyStatus::kSupported;
  /// What it does here, or why it has no effect, or why it is rejected.
  std::string_view text{};
  /// The types of optimizer or scheduler that have it; empty: all.
  std::string_view only{};
  /// Rejected: the value that is accepted, as JSON; kDisabled: an object whose
  /// "enabled" is not true.
  std::string_view harmless{};
  /// Ignored: what its value has to be nevertheless.
  KeyValue value = KeyValue::kAny;
};

inline constexpr std::string_view kDisabled = "disabled";

/// Sorted by section, as the guide shows them.
[[nodiscard]] std::span<const KeyRule> key_rules() noexcept;

/// A key of the table, or an object that holds some.
[[nodiscard]] bool is_known_key(std::string_view path);

/// The guide's table.
[[nodiscard]] std::string key_table();

/// Checks every key of a file against the table. Gives the file with values in
/// place of "auto", without keys that are null or for which there is no value,
/// which count as absent, and without rejected ones that have their harmless
/// value; throws Error(kInvalidArgument) for the others and for unknown ones,
/// but for objects at the top that the caller takes. If `notes_rejected`, notes
/// what a key is rejected for, leaves the key out and continues.
[[nodiscard]] Json check_keys(const Json& file, const AutoValues& autos,
                              const std::vector<std::string>& taken,
                              std::vector<KeyNote>& notes,
                              bool notes_rejected = false);

/// A file with the program's values in place of "auto" where there are some,
/// and their paths.
struct Resolved {
  Json file;
  std::vector<std::string> paths;
};
/// Throws Error(kInvalidArgument) where a value is missing that nothing else
/// could stand for.
[[nodiscard]] Resolved with_auto_values(Json file, const AutoValues& autos);

/// Turns supported keys whose path begins with `path` into ignored ones, but
/// for those that switch a section on.
void note_unused(std::vector<KeyNote>& notes, std::string_view path,
                 std::string_view why);

}  // namespace thinwire::config
