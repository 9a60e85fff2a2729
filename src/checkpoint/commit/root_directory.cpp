// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/root_directory.h"

#include <fmt/format.h>

#include <exception>
#include <span>
#include <vector>

#include "thinwire/core/log.h"

namespace thinwire::checkpoint {
namespace {

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// The manifest first: without it the rest is rubbish.
void remove_tree(FileSystem& files, const std::string& path) {
  const std::string manifest = fmt::format("{}/{}", path, kManifestName);
  if (files.exists(manifest)) files.remove_file(manifest);
  for (const std::string& name : files.list(path)) {
    const std::string inner = fmt::format("{}/{}", path, name);
    if (files.stat(inner).kind == FileInfo::Kind::kDirectory) {
      remove_tree(files, inner);
    } else {
      files.remove_file(inner);
    }
  }
  files.remove_directory(path);
}

}  // namespace

std::string RootDirectory::in(std::string_view name) const {
  return fmt::format("{}/{}", path, name);
}

void RootDirectory::make() const {
  std::vector<std::string> grown;  // directories that get a new name
  for (std::string at = path; !files.exists(at); at = grown.back())
    grown.push_back(parent_of(at));
  files.make_directories(path);
  for (const std::string& directory : grown) sync(directory);
}

void RootDirectory::sync(const std::string& directory) const {
  if (durable) files.sync_directory(directory);
}

void RootDirectory::put_file(const std::string& directory,
                             std::string_view name,
                             std::string_view text) const {
  const std::string to = fmt::format("{}/{}", directory, name);
  const std::string temporary = to + ".tmp";
  if (files.exists(temporary)) files.remove_file(temporary);  // of a crash
  const auto file = files.create(temporary);
  file->write_at(0, std::as_bytes(std::span(text)));
  if (durable) file->sync();
  file->close();
  files.rename(temporary, to);
}

void RootDirectory::put_latest(std::string_view name) const {
  put_file(path, "latest", fmt::format("{}\n", name));
}

void RootDirectory::remove(const std::string& name) const {
  // Somebody keeps it elsewhere.
  if (files.stat(in(name)).kind == FileInfo::Kind::kLink) return;
  std::string out_of_sight = name;
  if (kind_of(name) != NameKind::kDeleting) {
    out_of_sight = deleting_name();
    files.rename(in(name), in(out_of_sight));
    sync(path);
  }
  remove_tree(files, in(out_of_sight));
}

void RootDirectory::try_to_remove(const std::string& name) const noexcept {
  try {
    remove(name);
  } catch (const std::exception& error) {
    log(LogLevel::kWarning,
        std::string("the rest of a checkpoint cannot be removed: ") +
            error.what());
  }
}

}  // namespace thinwire::checkpoint
