// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/read/locate.h"

#include <fmt/format.h>

#include "checkpoint/commit/find_checkpoints.h"
#include "checkpoint/format/fields.h"
#include "thinwire/checkpoint/inspect.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint {

namespace {

Description describe(const std::string& path, const FoundCheckpoint& found) {
  Description d;
  d.path = path;
  d.complete = found.complete;
  d.problem = found.problem;
  if (!found.complete) return d;
  const Manifest& m = found.manifest;
  d.id = m.id;
  d.run = m.run;
  d.written = m.written;
  d.library = m.library;
  d.optimizer = m.optimizer;
  d.semantics = m.semantics;
  d.phase = m.phase;
  d.precision = m.precision;
  d.save_index = m.save_index;
  d.step = m.step;
  d.world = m.world;
  d.zero_stage = m.zero_stage;
  d.steps_behind = m.steps_behind;
  for (const SavedParameter& parameter : m.parameters)
    d.parameters += elements_of(parameter.shape).value();
  for (const SavedFile& file : m.files) d.bytes += file.bytes;
  return d;
}

}  // namespace

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

std::vector<Description> inspect(const std::string& path) {
  const Located found = locate(posix_file_system(), path);
  std::vector<Description> all;
  for (const FoundCheckpoint& one : found.checkpoints)
    all.push_back(describe(found.path_of(one), one));
  return all;
}

}  // namespace thinwire::checkpoint
