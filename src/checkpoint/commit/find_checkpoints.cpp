// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/find_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "checkpoint/deepspeed_directory.h"
#include "checkpoint/format/fields.h"
#include "checkpoint/read/verified_file.h"
#include "comm/host_name.h"
#include "core/require.h"
#include "thinwire/checkpoint/inspect.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint {
namespace {

std::string missing(const std::string& writer) {
  if (writer.empty()) return "it is missing";
  return fmt::format(
      "it is missing on host {}: host {} wrote it into a directory of its own "
      "(node-local storage); copy the hosts' directories into one",
      comm::host_name(), writer);
}

// Returns whether the entry has been renamed or removed since it was listed.
bool has_gone(FileSystem& files, const std::string& path) {
  try {
    return !files.exists(path);
  } catch (const Error&) {
    return false;
  }
}

bool may_be_checkpoint(FileSystem& files, const std::string& root,
                       const std::string& name) {
  // The directory lost+found of fsck is at the top of a disk. Only root can
  // enter it.
  if (name.starts_with('.') || name == "lost+found") return false;
  const std::string path = root + "/" + name;
  const FileInfo::Kind kind = files.stat(path).kind;
  if (kind != FileInfo::Kind::kDirectory && kind != FileInfo::Kind::kLink)
    return false;
  return kind_of(name) != NameKind::kForeign ||
         files.exists(fmt::format("{}/{}", path, kManifestName));
}

void put_newest_first(std::vector<FoundCheckpoint>& found) {
  const auto rank = [](const FoundCheckpoint& one) {
    return std::tuple(one.complete, one.manifest.save_index, one.manifest.step);
  };
  std::stable_sort(found.begin(), found.end(),
                   [&](const FoundCheckpoint& a, const FoundCheckpoint& b) {
                     return rank(a) > rank(b);
                   });
}

void count_parts(const RootDirectory& root, FoundCheckpoint& found) {
  if (found.complete || !root.in_parts.contains(found.manifest.id)) return;
  found.complete = true;
  found.problem.clear();
}

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
  d.steps_behind = steps_left_out(m);
  for (const SavedParameter& parameter : m.parameters)
    d.parameters += elements_of(parameter.shape).value();
  for (const SavedFile& file : m.files) d.bytes += file.bytes;
  return d;
}

}  // namespace

std::uint64_t require_regular(FileSystem& files, const std::string& path,
                              const std::string& writer) {
  if (!files.exists(path)) corrupt(path, missing(writer));
  const FileInfo info = files.stat(path);
  if (info.kind != FileInfo::Kind::kFile)
    corrupt(path, "it is not a regular file");
  return info.bytes;
}

void require_readable(const std::vector<FoundCheckpoint>& found) {
  for (const FoundCheckpoint& one : found)
    if (one.unreadable)
      throw Error(
          ErrorCode::kUnavailable,
          fmt::format("{}; it may be the newest checkpoint: make it "
                      "readable or move it away, or name the checkpoint "
                      "to load",
                      one.problem));
}

void require_path(std::string_view name, const std::string& path) {
  require(!path.empty() && path.find('\0') == std::string::npos, name,
          "a path without NUL", '"' + path + '"');
}

void require_files(FileSystem& files, const std::string& directory,
                   const Manifest& manifest) {
  for (const SavedFile& file : manifest.files) {
    const std::string path = directory + "/" + file.name;
    const std::uint64_t bytes = require_regular(files, path, file.host);
    if (bytes != file.bytes) {
      corrupt(path, fmt::format("it has {} bytes, the manifest says {}", bytes,
                                file.bytes));
    }
  }
}

FoundCheckpoint look_at(FileSystem& files, const std::string& root,
                        const std::string& name) {
  FoundCheckpoint found{.name = name};
  const std::string directory = root + "/" + name;
  try {
    require_regular(files, fmt::format("{}/{}", directory, kManifestName));
    found.manifest = read_manifest(files, directory);
    require_files(files, directory, found.manifest);
    found.complete = true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorruptCheckpoint) throw;
    found.problem = error.what();
  }
  return found;
}

std::vector<FoundCheckpoint> find_checkpoints(FileSystem& files,
                                              const std::string& root) {
  std::vector<FoundCheckpoint> found;
  for (const std::string& name : files.list(root)) {
    FoundCheckpoint one{.name = name};
    try {
      if (!may_be_checkpoint(files, root, name)) continue;
      one = look_at(files, root, name);
    } catch (const Error& error) {
      one.problem = error.what();
      one.unreadable = true;
    }
    if (one.complete || !has_gone(files, fmt::format("{}/{}", root, name)))
      found.push_back(std::move(one));
  }
  put_newest_first(found);
  return found;
}

FoundCheckpoint look_at(const RootDirectory& root, const std::string& name) {
  FoundCheckpoint found = look_at(root.files, root.path, name);
  count_parts(root, found);
  return found;
}

std::vector<FoundCheckpoint> find_checkpoints(const RootDirectory& root) {
  auto all = find_checkpoints(root.files, root.path);
  for (FoundCheckpoint& found : all) count_parts(root, found);
  put_newest_first(all);
  return all;
}

std::vector<std::string> superfluous(const std::vector<FoundCheckpoint>& found,
                                     const std::string& run,
                                     const Retention& which,
                                     const LoadedFrom& loaded_from) {
  std::vector<std::string> names;
  if (which.keep_last == 0) return names;
  std::int64_t newer = 0;
  std::int64_t since_then = 0;  // saved after the load
  bool has_finite = false;      // among the newer ones
  for (const FoundCheckpoint& one : found) {
    const std::int64_t step = one.manifest.step;
    // Copies under other names belong to the user who made them.
    if (!one.complete || one.manifest.run != run || one.name != step_name(step))
      continue;
    const bool is_last = newer < which.keep_last;
    const bool is_kept = which.keep_every > 0 && step % which.keep_every == 0;
    const bool is_needed = one.name == loaded_from.name && since_then < 2;
    const bool is_newest_finite = one.manifest.finite && !has_finite;
    has_finite = has_finite || one.manifest.finite;
    if (!is_last && !is_kept && !is_needed && !is_newest_finite)
      names.push_back(one.name);
    ++newer;
    if (one.manifest.save_index > loaded_from.newest_index) ++since_then;
  }
  return names;
}

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
  if (found.checkpoints.empty()) {
    refuse_deepspeed(files, directory);
    throw Error(ErrorCode::kUnavailable,
                fmt::format("{}: there is no checkpoint: neither a {} nor a "
                            "directory with one",
                            path, kManifestName));
  }
  return found;
}

std::string complete_one(FileSystem& files, const std::string& path) {
  const Located found = locate(files, path);
  require_readable(found.checkpoints);
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
