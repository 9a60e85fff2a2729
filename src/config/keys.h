// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json_text.h"
#include "thinwire/config/config.h"

/// The effect of each key of a configuration file, in one table. The reader
/// uses it, and docs/guide/from-deepspeed.md shows it.
namespace thinwire::config {

enum class KeyStatus {
  kSupported,
  kIgnored,   ///< Accepted, without effect: it cannot change results.
  kRejected,  ///< Unless it asks for what Thinwire does anyway.
};

struct KeyRule {
  std::string_view path;  ///< "fp16.loss_scale".
  KeyStatus status = KeyStatus::kSupported;
  /// Its effect, or the reason why it is ignored or rejected.
  std::string_view text{};
  /// The types of optimizer or scheduler that have it; empty: all.
  std::string_view only{};
  /// Rejected: the value that is accepted, as JSON; kDisabled: an object whose
  /// "enabled" is not true.
  std::string_view harmless{};
  /// Ignored: its value has to be true or false nevertheless.
  bool is_switch = false;
};

inline constexpr std::string_view kDisabled = "disabled";

/// Why the keys of fp16 and bf16, and of zero_optimization, are ignored.
inline constexpr std::string_view kNotEnabled = "the section is not enabled";
inline constexpr std::string_view kNoZero = "at stage 0 there is no ZeRO";

/// Sorted by section, as the guide shows them.
[[nodiscard]] std::span<const KeyRule> key_rules() noexcept;

/// A key of the table, or an object that holds some.
[[nodiscard]] bool is_known_key(std::string_view path);

/// Checks every key of a file against the table. Returns the file with values
/// in place of "auto". Keys that are null or lack a value count as absent, and
/// rejected keys with a harmless value, or in a section that is off, are left
/// out. Throws Error(kInvalidArgument) for other rejected keys and for unknown
/// ones, except objects at the top that the caller takes. If `notes_rejected`,
/// notes why a key is rejected, leaves it out and continues.
[[nodiscard]] JsonValue check_keys(const JsonValue& file,
                                   const AutoValues& autos,
                                   const std::vector<std::string>& taken,
                                   std::vector<KeyNote>& notes,
                                   bool notes_rejected = false);

/// Turns supported keys whose path begins with `path` into ignored ones, except
/// those that switch a section on. Does nothing if such a switch is rejected.
void note_unused(std::vector<KeyNote>& notes, std::string_view path,
                 std::string_view why);

}  // namespace thinwire::config
