// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/checkpoint/opened.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "checkpoint/commit/find_checkpoints.h"
#include "checkpoint/format/fields.h"
#include "checkpoint/mean.h"
#include "checkpoint/read/verified_file.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"

namespace thinwire::apps::checkpoint_tool {

std::string text_of(const StateDict::Scalar& scalar) {
  return std::visit([](const auto& value) { return fmt::format("{}", value); },
                    scalar);
}

Opened::Opened(const std::string& path)
    : directory_(
          checkpoint::complete_one(checkpoint::posix_file_system(), path)),
      manifest_(checkpoint::read_manifest(checkpoint::posix_file_system(),
                                          directory_)),
      arrays_(checkpoint::posix_file_system(), directory_, manifest_),
      weights_(checkpoint::posix_file_system(), directory_, manifest_) {
  for (std::size_t i = 0; i < manifest_.parameters.size(); ++i)
    numbers_.emplace(manifest_.parameters[i].name, i);
}

std::optional<std::size_t> Opened::parameter(std::string_view name) const {
  const auto found = numbers_.find(name);
  if (found == numbers_.end()) return std::nullopt;
  return found->second;
}

Values Opened::weight(const std::string& name) {
  const checkpoint::TensorEntry* const tensor = weights_.find(name);
  if (tensor == nullptr)
    throw Error(ErrorCode::kCorruptCheckpoint,
                directory_ + ": '" + name + "' is in no file of weights");
  return {
      tensor->type.dtype, tensor->bytes / size_of(tensor->type.dtype),
      [this, name](Range range, View to) { weights_.read(name, range, to); }};
}

Values Opened::elements(const checkpoint::SavedArray& array, int rank,
                        std::size_t parameter) {
  return {
      array.dtype,
      checkpoint::elements_of(manifest_.parameters[parameter].shape).value(),
      [this, &array, rank, parameter](Range range, View to) {
        arrays_.read(array.name, rank, parameter, range, to);
      }};
}

Values Opened::mean(const checkpoint::SavedArray& array,
                    std::size_t parameter) {
  return {
      array.dtype,
      checkpoint::elements_of(manifest_.parameters[parameter].shape).value(),
      [this, &array, parameter](Range range, View to) {
        checkpoint::MeanOfRanks sums(range.size);
        Buffer one(range.size, array.dtype);
        for (int rank = 0; rank < manifest_.world; ++rank) {
          arrays_.read(array.name, rank, parameter, range, one.view());
          sums.add(std::as_const(one).view());
        }
        sums.write(to);
      }};
}

bool Opened::has_all(const checkpoint::SavedArray& array, int rank,
                     std::size_t parameter) const {
  const std::size_t size =
      checkpoint::elements_of(manifest_.parameters[parameter].shape).value();
  std::size_t there = 0;
  for (const auto& piece :
       arrays_.pieces(array.name, rank, parameter, {0, size}))
    there += piece.range.size;
  return there == size;
}

}  // namespace thinwire::apps::checkpoint_tool
