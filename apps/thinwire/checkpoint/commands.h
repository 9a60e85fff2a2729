// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

/// What `thinwire checkpoint` does. Results go to stdout, for people or (json)
/// an object per line; what fails is thrown.
namespace thinwire::apps::checkpoint_tool {

void list(const std::string& root, bool json);
void show(const std::string& path, bool json);
/// Throws where something is damaged, after a line for each.
void verify(const std::string& path, bool json);
/// Throws where they differ, after a line for each difference.
void diff(const std::string& a, const std::string& b, bool json);

struct ExportFlags {
  std::string out;
  std::string dtype{};  ///< "fp32", "bf16", "fp16"; empty: the model's.
  bool states = false;
};
void export_to(const std::string& path, const ExportFlags& flags, bool json);

/// "1.2 GB"
[[nodiscard]] std::string size_text(std::uint64_t bytes);
/// The last part of a path.
[[nodiscard]] std::string name_of(const std::string& path);

/// What is said of a directory that is no checkpoint: a crash may leave one
/// that was being written; any other is damaged.
inline constexpr const char* kLeftover = "partial";
inline constexpr const char* kDamaged = "damaged";
[[nodiscard]] bool is_leftover(const std::string& name);

}  // namespace thinwire::apps::checkpoint_tool
