// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace thinwire::train_gpt {

/// The object of a configuration file that is this program's.
inline constexpr const char* kOwnObject = "train_gpt";

/// One key of a configuration file and its value or values as the command line
/// would give them.
struct ConfigEntry {
  std::string flag;  ///< Without dashes in front: "warmup-steps".
  std::vector<std::string> values;
};

/// Flags from the object "train_gpt" of a configuration file, as JSON text:
/// {"steps": 30, "freeze_step": "auto", "data": ["a.txt"]}. Keys are flags,
/// with _ or -. Throws UsageError for other values; `file` stands for the file
/// in messages.
[[nodiscard]] std::vector<ConfigEntry> parse_flags(const std::string& file,
                                                   std::string_view text);

/// The one of `known` (not empty) that begins with `word`, or else is the
/// fewest edits away from it.
[[nodiscard]] std::string nearest(std::string_view word,
                                  const std::vector<std::string>& known);

}  // namespace thinwire::train_gpt
