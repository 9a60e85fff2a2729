// SPDX-License-Identifier: Apache-2.0
// SavedArrays: what some bytes hold.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "checkpoint/read/saved_arrays.h"

namespace thinwire::checkpoint {

std::string SavedArrays::describe(std::size_t file, std::uint64_t begin,
                                  std::uint64_t end) const {
  const SafetensorsHeader& header = files_.at(file)->header();
  std::vector<std::string> lists;
  if (begin < header.data_begin) lists.emplace_back("the header");
  const auto is_hit = [&](const TensorEntry& tensor) {
    return tensor.bytes > 0 && tensor.begin < end && tensor.end() > begin;
  };
  std::set<std::string_view> known;
  for (const auto& [name, array] : arrays_)
    for (const auto& [rank, part] : array.parts) {
      const auto found = part.tensors.find(file);
      if (found == part.tensors.end() || !is_hit(*found->second)) continue;
      known.insert(found->second->name);
      if (part.pieces == nullptr) {
        lists.push_back(name);
        continue;
      }
      const TensorEntry& tensor = *found->second;
      const std::uint64_t each = size_of(tensor.type.dtype);
      const std::uint64_t first =
          (std::max(begin, tensor.begin) - tensor.begin) / each;
      const std::uint64_t last =
          (std::min(end, tensor.end()) - tensor.begin + each - 1) / each;
      std::vector<std::string_view> hit;
      for (const SavedPiece& piece : *part.pieces) {
        const std::uint64_t values =
            array.saved->axis == optim::Axis::kElement ? piece.range.size : 1;
        if (piece.file != file || piece.value >= last ||
            piece.value + values <= first)
          continue;
        const std::string& parameter =
            manifest_.parameters[piece.parameter].name;
        if (hit.empty() || hit.back() != parameter) hit.push_back(parameter);
      }
      lists.push_back(name + " of " + some_of(hit));
    }
  for (const TensorEntry& tensor : header.tensors)
    if (is_hit(tensor) && !known.contains(tensor.name))
      lists.push_back(tensor.name);
  return fmt::format("{}", fmt::join(lists, "; "));
}

}  // namespace thinwire::checkpoint
