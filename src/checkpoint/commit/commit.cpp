// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/commit.h"

#include <fmt/format.h>

#include <exception>

#include "checkpoint/commit/find_checkpoints.h"
#include "thinwire/core/error.h"
#include "thinwire/core/log.h"

namespace thinwire::checkpoint {
namespace {

// Renames the entry that has the final name. Returns its new name, or an empty
// text if there was none.
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

// Only logs a failure, because the file serves only people.
void try_to_put_latest(const RootDirectory& root, const std::string& name) {
  try {
    root.put_latest(name);
  } catch (const Error& error) {
    log(LogLevel::kWarning,
        fmt::format("latest does not name the newest checkpoint: {}",
                    error.what()));
  }
}

class Tidying {
 public:
  Tidying(const RootDirectory& root, bool has_lock)
      : root_(root), has_lock_(has_lock) {}

  // Partial checkpoints come first, because they may be newer than the
  // checkpoints that they were meant to replace.
  void run() {
    for (const NameKind kind :
         {NameKind::kPartial, NameKind::kReplaced, NameKind::kDeleting}) {
      for (const std::string& name : root_.files.list(root_.path))
        if (kind_of(name) == kind) settle(name);
    }
    if (!adopted_) return;
    const auto found = find_checkpoints(root_);
    if (found.front().complete) root_.put_latest(found.front().name);
    root_.sync(root_.path);
  }

 private:
  void settle(const std::string& name) {
    const FoundCheckpoint found = look_at(root_, name);
    const bool is_ours = is_of_run(name, root_.run);
    if (kind_of(name) != NameKind::kDeleting && found.complete &&
        (is_ours || has_lock_) && adopt(found)) {
      return;
    }
    if ((is_ours && may_go(found)) || (has_lock_ && is_unfinished(found))) {
      root_.try_to_remove(name);
    } else if (is_ours && is_part(found)) {
      log(LogLevel::kInfo,
          fmt::format("{}: some hosts did not finish this save; the part is "
                      "kept until a newer checkpoint is complete",
                      root_.in(name)));
    } else {
      log(LogLevel::kWarning, fmt::format("{}: another run crashed and left "
                                          "this, or it is damaged; it is kept",
                                          root_.in(name)));
    }
  }

  // Returns whether a complete checkpoint now has its final name. First moves
  // away an entry of that name that is incomplete, or older and of the same
  // run.
  bool adopt(const FoundCheckpoint& found) {
    const std::string name = step_name(found.manifest.step);
    if (root_.files.exists(root_.in(name))) {
      const FoundCheckpoint there = look_at(root_, name);
      if (there.complete &&
          (there.manifest.run != found.manifest.run ||
           there.manifest.save_index >= found.manifest.save_index)) {
        return false;
      }
      root_.files.rename(root_.in(name), root_.in(root_.replaced_name(name)));
    }
    root_.files.rename(root_.in(found.name), root_.in(name));
    root_.sync(root_.path);
    adopted_ = true;
    log(LogLevel::kInfo, fmt::format("{}: completed after a crash, from {}",
                                     root_.in(name), found.name));
    return true;
  }

  // Returns whether an entry that this run named may be removed. A replaced
  // entry may be of any kind, and may be the only checkpoint.
  bool may_go(const FoundCheckpoint& found) const {
    const NameKind kind = kind_of(found.name);
    if (kind == NameKind::kDeleting) return true;
    if (is_part(found)) return found.manifest.save_index < newest_complete();
    if (kind == NameKind::kPartial && !found.complete) return true;
    const bool is_ours = found.manifest.run == root_.run;
    return is_ours && look_at(root_, step_name(found.manifest.step)).complete;
  }

  // Returns whether a save or a removal of any run was interrupted. No process
  // can continue such work while this one holds the lock.
  bool is_unfinished(const FoundCheckpoint& found) const {
    const NameKind kind = kind_of(found.name);
    return kind == NameKind::kDeleting ||
           (kind == NameKind::kPartial &&
            !root_.files.exists(
                fmt::format("{}/{}", root_.in(found.name), kManifestName)));
  }

  // Returns whether another host may have the missing files.
  static bool is_part(const FoundCheckpoint& found) {
    return kind_of(found.name) == NameKind::kPartial && !found.complete &&
           is_in_parts(found.manifest);
  }

  // Returns the highest save_index of this run's complete checkpoints.
  std::int64_t newest_complete() const {
    for (const FoundCheckpoint& one : find_checkpoints(root_))
      if (one.complete && one.manifest.run == root_.run &&
          kind_of(one.name) != NameKind::kDeleting)
        return one.manifest.save_index;
    return -1;
  }

  const RootDirectory& root_;
  const bool has_lock_;
  bool adopted_ = false;
};

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

// Failures are only logged, because the save has already succeeded.
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

void tidy(const RootDirectory& root, bool has_lock) {
  Tidying(root, has_lock).run();
}

}  // namespace thinwire::checkpoint
