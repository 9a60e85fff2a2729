// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <iostream>
#include <map>
#include <string>
#include <variant>

#include "apps/thinwire/checkpoint/commands.h"
#include "apps/thinwire/checkpoint/json_lines.h"
#include "apps/thinwire/checkpoint/opened.h"
#include "checkpoint/extra.h"
#include "checkpoint/read/locate.h"
#include "checkpoint/read/verified_file.h"
#include "thinwire/core/state_dict.h"

namespace thinwire::apps::checkpoint_tool {

namespace {

using checkpoint::Manifest;

void print_scalars(std::string_view title, const StateDict& state) {
  for (const auto& [name, value] : state.scalars())
    fmt::print("{:<12}{} = {}\n", title, name, text_of(value));
}

// Prints the application's arrays, which are tensors of the files. The manifest
// has only its numbers.
void print_extra_arrays(const std::string& directory, const Manifest& m) {
  for (const auto& file : m.files) {
    if (!file.name.starts_with("state-")) continue;
    const checkpoint::VerifiedFile opened(checkpoint::posix_file_system(),
                                          directory, file);
    for (const auto& tensor : opened.header().tensors)
      if (tensor.name.starts_with(checkpoint::kExtra) ||
          tensor.name.starts_with(checkpoint::kExtraOfRank))
        fmt::print("{:<12}{} in {}: {}, {} bytes\n", "extra", tensor.name,
                   file.name, to_string(tensor.type.dtype), tensor.bytes);
  }
}

void print_manifest(const std::string& directory, const Manifest& m) {
  const auto line = [](std::string_view name, const auto& value) {
    fmt::print("{:<12}{}\n", name, value);
  };
  line("checkpoint", directory);
  line("step", m.step);
  line("written", m.written + ", by Thinwire " + m.library +
                      (m.durable ? "" : ", not flushed to the disk"));
  line("id",
       m.id + ", save " + std::to_string(m.save_index) + " of run " + m.run);
  line("ranks", m.world);
  line("optimizer",
       fmt::format("{}, {}, {}, {}, ZeRO stage {}", m.optimizer, m.semantics,
                   m.phase, m.precision, m.zero_stage));
  if (m.steps_behind > 0)
    line("weights", fmt::format("{} local steps behind", m.steps_behind));
  std::uint64_t elements = 0;
  for (const auto& parameter : m.parameters) elements += elements_of(parameter);
  line("parameters", fmt::format("{}, {} elements; {} others, {} aliases",
                                 m.parameters.size(), elements, m.others.size(),
                                 m.aliases.size()));
  for (const auto& array : m.arrays)
    line("array",
         fmt::format("{}: {}, by {}, {}", array.name, to_string(array.dtype),
                     to_string(array.axis), to_string(array.sharing)));
  print_scalars("scalar", m.scalars);
  print_scalars("extra", m.extra);
  print_extra_arrays(directory, m);
  for (const auto& file : m.files)
    line("file", fmt::format("{}: {}", file.name, size_text(file.bytes)));
}

}  // namespace

void show(const std::string& path, bool json) {
  auto& files = checkpoint::posix_file_system();
  const std::string directory = checkpoint::complete_one(files, path);
  if (!json)
    return print_manifest(directory,
                          checkpoint::read_manifest(files, directory));
  // Prints all of the manifest except the hashes.
  OrderedJson manifest = OrderedJson::parse(
      checkpoint::read_text(files, directory + "/manifest.json", false,
                            checkpoint::kMostManifestBytes));
  for (auto& file : manifest["files"]) file.erase("xxh3");
  manifest.erase("manifest_xxh3");
  OrderedJson all{{"path", directory}};
  all.update(manifest);
  print_line(all);
}

}  // namespace thinwire::apps::checkpoint_tool
