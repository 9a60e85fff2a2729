// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/read/read_text.h"

#include <fmt/format.h>

#include <span>

#include "checkpoint/format/fields.h"

namespace thinwire::checkpoint {

std::string read_text(FileSystem& files, const std::string& path,
                      bool follows_links, std::uint64_t most_bytes) {
  const auto file = files.open(path, follows_links);
  const std::uint64_t bytes = file->size();
  if (bytes > most_bytes)
    corrupt(path, fmt::format("it has {} bytes, at most {} are allowed", bytes,
                              most_bytes));
  std::string text(bytes, '\0');
  text.resize(file->read_at(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Manifest read_manifest(FileSystem& files, const std::string& directory) {
  const std::string path = fmt::format("{}/{}", directory, kManifestName);
  return parse_manifest(read_text(files, path, false, kMostManifestBytes),
                        path);
}

}  // namespace thinwire::checkpoint
