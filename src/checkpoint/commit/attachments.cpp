// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/attachments.h"

#include <set>
#include <string_view>

#include "checkpoint/commit/root_directory.h"
#include "checkpoint/format/fields.h"
#include "core/require.h"

namespace thinwire::checkpoint {
namespace {

constexpr std::size_t kMostBytes = std::size_t{16} << 20;

}  // namespace

void require_attachments(std::span<const Attachment> attachments,
                         std::span<const PlannedFile> files) {
  std::set<std::string_view> taken = {kManifestName, kProbeName};
  for (const PlannedFile& file : files) taken.insert(file.name);
  for (const Attachment& one : attachments) {
    require(is_file_name(one.name), "attachments[].name",
            "letters, digits, '.', '_' and '-', with a letter or digit first, "
            "at most 128",
            one.name);
    require(taken.insert(one.name).second, "attachments[].name",
            "a name of no other file of the checkpoint", one.name);
    require(one.bytes.size() <= kMostBytes, "attachments[].bytes",
            "at most 16 MiB", one.bytes.size());
  }
}

}  // namespace thinwire::checkpoint
