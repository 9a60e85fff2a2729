// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/extra.h"

#include <optional>
#include <utility>

#include "checkpoint/read/verified_file.h"
#include "checkpoint/save_plan.h"
#include "thinwire/core/buffer.h"

namespace thinwire::checkpoint {

void ExtraReader::add_tensors(int rank, std::string_view prefix,
                              StateDict& to) {
  const std::string name = state_file_name(rank, manifest_.world);
  for (std::size_t i = 0; i < manifest_.files.size(); ++i) {
    if (manifest_.files[i].name != name) continue;
    std::optional<VerifiedFile> own;
    VerifiedFile* file = arrays_.opened(i);
    if (file == nullptr)
      file = &own.emplace(files_, directory_, manifest_.files[i]);
    for (const TensorEntry& tensor : file->header().tensors) {
      if (!tensor.name.starts_with(prefix)) continue;
      Buffer values(
          static_cast<std::size_t>(tensor.bytes) / size_of(tensor.type.dtype),
          tensor.type.dtype);
      file->read(tensor.begin,
                 {static_cast<std::byte*>(values.data()), values.bytes()});
      to.put(tensor.name.substr(prefix.size()), std::move(values));
    }
    file->forget_chunk();
  }
}

StateDict ExtraReader::common() {
  StateDict extra;
  extra.put_all("", manifest_.extra);
  add_tensors(0, kExtra, extra);
  return extra;
}

StateDict ExtraReader::of_rank(int rank) {
  StateDict extra;
  if (!manifest_.extra_of_ranks.empty())
    extra.put_all("", manifest_.extra_of_ranks[static_cast<std::size_t>(rank)]);
  add_tensors(rank, kExtraOfRank, extra);
  return extra;
}

}  // namespace thinwire::checkpoint
