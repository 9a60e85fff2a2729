// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/checkpoint/opened.h"

#include "checkpoint/commit/find_checkpoints.h"
#include "checkpoint/format/fields.h"
#include "checkpoint/read/verified_file.h"
#include "thinwire/core/error.h"

namespace thinwire::apps::checkpoint_tool {

Opened::Opened(const std::string& path)
    : directory_(
          checkpoint::complete_one(checkpoint::posix_file_system(), path)),
      manifest_(checkpoint::read_manifest(checkpoint::posix_file_system(),
                                          directory_)),
      arrays_(checkpoint::posix_file_system(), directory_, manifest_),
      weights_(checkpoint::posix_file_system(), directory_, manifest_) {}

Values Opened::weight(const std::string& name) {
  const checkpoint::TensorEntry* const tensor = weights_.find(name);
  if (tensor == nullptr)
    throw Error(ErrorCode::kCorruptCheckpoint,
                directory_ + ": '" + name + "' is in no file of weights");
  return {
      tensor->type.dtype, tensor->bytes / size_of(tensor->type.dtype),
      [this, name](Range range, View to) { weights_.read(name, range, to); }};
}

Values Opened::elements(const checkpoint::SavedArray& array,
                        std::size_t parameter) {
  return {
      array.dtype,
      checkpoint::elements_of(manifest_.parameters[parameter].shape).value(),
      [this, &array, parameter](Range range, View to) {
        arrays_.read(array.name, -1, parameter, range, to);
      }};
}

bool Opened::has_all(const checkpoint::SavedArray& array,
                     std::size_t parameter) const {
  const std::size_t size =
      checkpoint::elements_of(manifest_.parameters[parameter].shape).value();
  std::size_t there = 0;
  for (const auto& piece : arrays_.pieces(array.name, -1, parameter, {0, size}))
    there += piece.range.size;
  return there == size;
}

}  // namespace thinwire::apps::checkpoint_tool
