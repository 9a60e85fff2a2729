// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

/// The subcommands of `thinwire checkpoint`. They write results to stdout, for
/// people or (json) as one object per line, and throw on failure.
namespace thinwire::apps::checkpoint_tool {

void list(const std::string& root, bool json);
void show(const std::string& path, bool json);
/// Throws if something is damaged, after a line for each.
void verify(const std::string& path, bool json);

struct ExportFlags {
  std::string out;
  std::string dtype{};  ///< "fp32", "bf16" or "fp16"; empty for the model's.
  bool states = false;
};
void export_to(const std::string& path, const ExportFlags& flags, bool json);

using OrderedJson = nlohmann::ordered_json;

/// Prints one object on one line; bytes that are not UTF-8 are replaced.
inline void print_line(const OrderedJson& json) {
  std::cout << json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)
            << '\n';
}
/// Returns a text like "1.2 GB".
[[nodiscard]] std::string size_text(std::uint64_t bytes);

}  // namespace thinwire::apps::checkpoint_tool
