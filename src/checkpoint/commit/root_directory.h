// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "checkpoint/disk/file_system.h"
#include "checkpoint/format/manifest.h"

namespace thinwire::checkpoint {

inline constexpr std::string_view kProbeName = "probe";

/// Kinds of entries in a ROOT, which their names determine. A checkpoint may
/// have a name of any kind.
enum class NameKind { kFinal, kPartial, kReplaced, kDeleting, kForeign };

/// Returns, for example, "step-0000001000".
[[nodiscard]] std::string step_name(std::int64_t step);
[[nodiscard]] NameKind kind_of(std::string_view name);
/// Returns 32 random hexadecimal digits. Local.
[[nodiscard]] std::string random_id();
/// Returns whether this run gave the entry its partial, replaced or deleting
/// name. The name contains the run, because the entry may have no manifest.
[[nodiscard]] bool is_of_run(std::string_view name, std::string_view run);

/// A ROOT in the view of rank 0. All functions are local.
struct RootDirectory {
  FileSystem& files;
  std::string path;
  std::string run;
  bool durable = true;
  /// Ids of checkpoints whose files are complete across the directories of
  /// several hosts.
  std::set<std::string> in_parts{};

  [[nodiscard]] std::string in(std::string_view name) const;
  /// Return an unused name, such as "step-0000001000.partial-<16 hex>".
  [[nodiscard]] std::string partial_name(std::int64_t step) const;
  [[nodiscard]] std::string replaced_name(std::string_view name) const;
  [[nodiscard]] std::string deleting_name() const;

  /// Makes the directory and its parents, and syncs them.
  void make() const;
  void sync(const std::string& directory) const;
  /// Writes a file with this text completely or not at all, by renaming
  /// NAME.tmp.
  void put_file(const std::string& directory, std::string_view name,
                std::string_view text) const;
  /// Writes ROOT/latest.
  void put_latest(std::string_view name) const;
  /// Renames the entry, then removes its manifest and then the rest, so that a
  /// crash leaves nothing that looks like a checkpoint.
  void remove(const std::string& name) const;
  /// Like remove(), but logs an error.
  void try_to_remove(const std::string& name) const noexcept;
};

}  // namespace thinwire::checkpoint
