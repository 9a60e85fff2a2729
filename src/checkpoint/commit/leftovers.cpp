// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/leftovers.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "checkpoint/commit/find_checkpoints.h"
#include "checkpoint/commit/root.h"
#include "thinwire/core/log.h"

namespace thinwire::checkpoint {
namespace {

class Tidying {
 public:
  Tidying(const RootDirectory& root, bool has_lock)
      : root_(root), has_lock_(has_lock) {}

  // Partial ones first: they may be newer than what they were to replace.
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
    if (is_ours && may_go(found)) {
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

  // Returns whether a complete checkpoint now has its final name. An entry that
  // has the name is moved away if it is incomplete, or older and of the same
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
  // entry may be anything that was in the way, and it may be the only
  // checkpoint.
  bool may_go(const FoundCheckpoint& found) const {
    const NameKind kind = kind_of(found.name);
    if (kind == NameKind::kDeleting) return true;
    if (is_part(found)) return found.manifest.save_index < newest_complete();
    if (kind == NameKind::kPartial && !found.complete) return true;
    const bool is_ours = found.manifest.run == root_.run;
    return is_ours && look_at(root_, step_name(found.manifest.step)).complete;
  }

  // A host that is not here may have what is missing of it.
  static bool is_part(const FoundCheckpoint& found) {
    return kind_of(found.name) == NameKind::kPartial && !found.complete &&
           is_in_parts(found.manifest);
  }

  // The save_index of this run's.
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

void tidy(const RootDirectory& root, bool has_lock) {
  Tidying(root, has_lock).run();
}

}  // namespace thinwire::checkpoint
