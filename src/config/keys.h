// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json_text.h"
#include "thinwire/config/config.h"

/// The effect of each key of a configuration file, in one table. The reader
/// uses the table, and docs/guide/from-deepspeed.md shows it.
namespace thinwire::config {

enum class KeyStatus {
  kSupported,
  kIgnored,   ///< Accepted without effect, because it cannot change results.
  kRejected,  ///< Rejected unless it asks for Thinwire's own behaviour.
};

struct KeyRule {
  std::string_view path;  ///< For example "fp16.loss_scale".
  KeyStatus status = KeyStatus::kSupported;
  /// Its effect, or the reason for ignoring or rejecting it.
  std::string_view text{};
  /// Types of optimizer or scheduler that have the key. If empty, all have it.
  std::string_view only{};
  /// For a rejected key: the value that is accepted nevertheless, as JSON.
  /// kDisabled accepts an object whose "enabled" is not true.
  std::string_view harmless{};
  /// For an ignored key: whether its value must be true or false.
  bool is_switch = false;
};

inline constexpr std::string_view kDisabled = "disabled";

/// Reason for ignoring the keys of fp16, bf16 or zero_optimization.
inline constexpr std::string_view kNotEnabled = "the section is not enabled";
inline constexpr std::string_view kNoZero = "at stage 0 there is no ZeRO";

/// Returns the rules in order of sections, as the guide shows them.
[[nodiscard]] std::span<const KeyRule> key_rules() noexcept;

/// Returns whether the table has this key, or keys of this object.
[[nodiscard]] bool is_known_key(std::string_view path);

/// Checks every key of a file against the table. Returns the file with values
/// in place of "auto". Keys that are null or lack a value count as absent.
/// Rejected keys are left out if their value is harmless or their section is
/// off. Throws Error(kInvalidArgument) for other rejected keys and for unknown
/// keys, except objects at the top that the caller takes. If `notes_rejected`,
/// notes the reason for each rejected key and leaves it out instead.
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
