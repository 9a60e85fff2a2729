// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/read/locate.h"

#include <fmt/format.h>

#include "checkpoint/commit/find_checkpoints.h"
#include "checkpoint/format/manifest.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint {

Located locate(FileSystem& files, const std::string& path) {
  std::string directory = path;
  while (directory.size() > 1 && directory.ends_with('/')) directory.pop_back();
  Located found;
  if (files.exists(fmt::format("{}/{}", directory, kManifestName))) {
    const std::size_t slash = directory.rfind('/');
    found.root = slash == std::string::npos ? "." : directory.substr(0, slash);
    found.checkpoints.push_back(
        look_at(files, found.root, directory.substr(slash + 1)));
    return found;
  }
  found.is_root = true;
  found.root = directory;
  found.checkpoints = find_checkpoints(files, directory);
  if (found.checkpoints.empty())
    throw Error(ErrorCode::kUnavailable,
                fmt::format("{}: there is no checkpoint: neither a {} nor a "
                            "directory with one",
                            path, kManifestName));
  return found;
}

std::string complete_one(FileSystem& files, const std::string& path) {
  const Located found = locate(files, path);
  const FoundCheckpoint& newest = found.checkpoints.front();
  if (!newest.complete)
    throw Error(
        ErrorCode::kUnavailable,
        fmt::format("{}: no checkpoint is complete: {}", path, newest.problem));
  return found.path_of(newest);
}

}  // namespace thinwire::checkpoint
