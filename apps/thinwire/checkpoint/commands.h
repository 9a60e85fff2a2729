// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

/// The subcommands of `thinwire checkpoint`. They write results to stdout, for
/// people or (json) as one object per line, and throw on failure.
namespace thinwire::apps::checkpoint_tool {

void list(const std::string& root, bool json);
void show(const std::string& path, bool json);
/// Throws if something is damaged, after a line for each.
void verify(const std::string& path, bool json);
/// Throws if they differ, after a line for each difference.
void diff(const std::string& a, const std::string& b, bool json);

struct ExportFlags {
  std::string out;
  std::string dtype{};  ///< "fp32", "bf16" or "fp16"; empty for the model's.
  bool states = false;
};
void export_to(const std::string& path, const ExportFlags& flags, bool json);

/// Returns a text like "1.2 GB".
[[nodiscard]] std::string size_text(std::uint64_t bytes);
/// Returns the last part of a path.
[[nodiscard]] std::string name_of(const std::string& path);

/// States of a directory that is no checkpoint. A crash may leave a partial
/// one; any other is damaged.
inline constexpr const char* kLeftover = "partial";
inline constexpr const char* kDamaged = "damaged";
[[nodiscard]] bool is_leftover(const std::string& name);

}  // namespace thinwire::apps::checkpoint_tool
