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

/// Kinds of entries of a ROOT, by their names. A checkpoint may have a name of
/// any kind.
enum class NameKind { kFinal, kPartial, kReplaced, kDeleting, kForeign };

/// "step-0000001000"
[[nodiscard]] std::string step_name(std::int64_t step);
[[nodiscard]] NameKind kind_of(std::string_view name);
/// Local: 32 hexadecimal digits that nobody else has.
[[nodiscard]] std::string random_id();
/// Whether a partial, replaced or deleting one was made by this run; its name
/// says so, since it need not have a manifest.
[[nodiscard]] bool is_of_run(std::string_view name, std::string_view run);

/// A ROOT as rank 0 works on it. Everything here is local.
struct RootDirectory {
  FileSystem& files;
  std::string path;
  std::string run;
  bool durable = true;
  /// Ids of checkpoints of which hosts with a directory each have all files
  /// among them.
  std::set<std::string> in_parts{};

  [[nodiscard]] std::string in(std::string_view name) const;
  /// Return names that no entry has, such as "step-0000001000.partial-<16
  /// hex>".
  [[nodiscard]] std::string partial_name(std::int64_t step) const;
  [[nodiscard]] std::string replaced_name(std::string_view name) const;
  [[nodiscard]] std::string deleting_name() const;

  /// With all above it, and on the disk.
  void make() const;
  void sync(const std::string& directory) const;
  /// A file of this text beside others, whole or not at all: NAME.tmp, renamed.
  void put_file(const std::string& directory, std::string_view name,
                std::string_view text) const;
  /// ROOT/latest
  void put_latest(std::string_view name) const;
  /// Out of sight first, then the manifest, then the rest: what a crash leaves
  /// of it is no checkpoint.
  void remove(const std::string& name) const;
  /// The same; a failure is logged.
  void try_to_remove(const std::string& name) const noexcept;
};

}  // namespace thinwire::checkpoint
