// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/extra.h"

#include <string_view>
#include <utility>

#include "checkpoint/read/verified_file.h"
#include "checkpoint/save_plan.h"
#include "thinwire/core/buffer.h"

namespace thinwire::checkpoint {

namespace {

void add_tensors(FileSystem& files, const std::string& directory,
                 const Manifest& manifest, int rank, std::string_view prefix,
                 StateDict& to) {
  const std::string name = state_file_name(rank, manifest.world);
  for (const SavedFile& saved : manifest.files) {
    if (saved.name != name) continue;
    VerifiedFile file(files, directory, saved);
    for (const TensorEntry& tensor : file.header().tensors) {
      if (!tensor.name.starts_with(prefix)) continue;
      Buffer values(
          static_cast<std::size_t>(tensor.bytes) / size_of(tensor.type.dtype),
          tensor.type.dtype);
      file.read(tensor.begin,
                {static_cast<std::byte*>(values.data()), values.bytes()});
      to.put(tensor.name.substr(prefix.size()), std::move(values));
    }
  }
}

}  // namespace

StateDict read_extra(FileSystem& files, const std::string& directory,
                     const Manifest& manifest) {
  StateDict extra;
  extra.put_all("", manifest.extra);
  add_tensors(files, directory, manifest, 0, kExtra, extra);
  return extra;
}

StateDict read_extra_of_rank(FileSystem& files, const std::string& directory,
                             const Manifest& manifest, int rank) {
  StateDict extra;
  if (!manifest.extra_of_ranks.empty())
    extra.put_all("", manifest.extra_of_ranks[static_cast<std::size_t>(rank)]);
  add_tensors(files, directory, manifest, rank, kExtraOfRank, extra);
  return extra;
}

}  // namespace thinwire::checkpoint
