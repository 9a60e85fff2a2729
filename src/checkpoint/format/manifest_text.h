// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/format/manifest.h"
#include "core/json.h"

/// Helpers that writing and parsing a manifest share.
namespace thinwire::checkpoint {

inline constexpr std::string_view kManifestFormat = "thinwire.checkpoint";
inline constexpr int kManifestMajor = 1;
inline constexpr int kManifestMinor = 0;

/// 16 hexadecimal digits.
[[nodiscard]] std::string hash_text(std::uint64_t hash);
/// Returns the end of a manifest that begins with `text`.
[[nodiscard]] std::string manifest_end(std::string_view text);

/// One of the list of files. file_from_json() throws Error(kCorruptCheckpoint),
/// which names `from`.
[[nodiscard]] Json file_to_json(const SavedFile& file);
[[nodiscard]] SavedFile file_from_json(const Json& value,
                                       const std::string& from);
/// [{"name": ..., "integer" | "real" | "text": ...}], by name. Throws
/// Error(kInvalidArgument) for a name or a text that is not UTF-8.
[[nodiscard]] Json scalars_to_json(const StateDict& state);
/// Adds one of that list. Throws Error(kCorruptCheckpoint) naming file and
/// member.
void add_scalar(StateDict& state, const Json& scalar, const std::string& file,
                std::string_view member);

}  // namespace thinwire::checkpoint
