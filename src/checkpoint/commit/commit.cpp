// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/commit.h"

#include <fmt/format.h>

#include <exception>

#include "checkpoint/commit/find_checkpoints.h"
#include "thinwire/core/error.h"
#include "thinwire/core/log.h"

namespace thinwire::checkpoint {
namespace {

// Renames an entry that has the final name. Returns the new name, or an empty
// one if there was no such entry.
std::string move_away(const RootDirectory& root, const std::string& name) {
  if (!root.files.exists(root.in(name))) return {};
  std::string replaced = root.replaced_name(name);
  root.files.rename(root.in(name), root.in(replaced));
  return replaced;
}

void give_final_name(const RootDirectory& root, const std::string& partial,
                     const std::string& name, const std::string& replaced) {
  try {
    root.files.rename(root.in(partial), root.in(name));
  } catch (const std::exception&) {
    if (!replaced.empty()) root.files.rename(root.in(replaced), root.in(name));
    throw;
  }
}

// For people: the checkpoint is there without it.
void try_to_put_latest(const RootDirectory& root, const std::string& name) {
  try {
    root.put_latest(name);
  } catch (const Error& error) {
    log(LogLevel::kWarning,
        fmt::format("latest does not name the newest checkpoint: {}",
                    error.what()));
  }
}

}  // namespace

void put_manifest(const RootDirectory& root, const std::string& partial,
                  const std::string& manifest) {
  const std::string directory = root.in(partial);
  root.put_file(directory, kManifestName, manifest);
  root.sync(directory);
}

std::string publish(const RootDirectory& root, const std::string& partial,
                    std::int64_t step) {
  const std::string name = step_name(step);
  std::string replaced = move_away(root, name);
  give_final_name(root, partial, name, replaced);
  try_to_put_latest(root, name);
  root.sync(root.path);
  return replaced;
}

// The save has succeeded, whatever becomes of what was there before.
void remove_replaced(const RootDirectory& root, const std::string& replaced) {
  if (replaced.empty()) return;
  std::string run;
  try {
    run = look_at(root.files, root.path, replaced).manifest.run;
  } catch (const Error& error) {
    log(LogLevel::kWarning, error.what());
  }
  if (run == root.run) return root.try_to_remove(replaced);
  log(LogLevel::kWarning,
      fmt::format("{}: it had the name of a new checkpoint and does not belong "
                  "to this run; it is kept",
                  root.in(replaced)));
}

}  // namespace thinwire::checkpoint
