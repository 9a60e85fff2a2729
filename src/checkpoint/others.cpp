// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/others.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/matching.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint {

namespace {

// Buffers that are floats stand among the parameters of foreign weights.
const SavedParameter* find(const Manifest& manifest, const std::string& name) {
  for (const auto* list : {&manifest.others, &manifest.parameters})
    for (const SavedParameter& saved : *list)
      if (saved.name == name) return &saved;
  return nullptr;
}

}  // namespace

std::vector<const SavedParameter*> match_others(
    const std::vector<OtherTensor>& others, const Manifest& manifest,
    const LoadOptions& options, std::vector<std::string>& notes) {
  std::vector<const SavedParameter*> found;
  for (const OtherTensor& other : others) {
    const SavedParameter* saved = find(manifest, other.name);
    for (const std::string& glob : options.ignore)
      if (matches(glob, other.name)) saved = nullptr;
    found.push_back(saved);
    if (saved == nullptr) {
      notes.push_back(fmt::format(
          "'{}' is not in the checkpoint, and stays as it is", other.name));
      continue;
    }
    const TensorType type{other.values.dtype(), other.is_bool};
    if (saved->shape != other.shape || saved->type != type)
      throw Error(ErrorCode::kCorruptCheckpoint,
                  fmt::format("'{}' has another shape or type than in the "
                              "checkpoint",
                              other.name));
  }
  return found;
}

std::vector<Buffer> read_others(const std::vector<const SavedParameter*>& saved,
                                Weights& weights) {
  std::vector<Buffer> all;
  for (const SavedParameter* other : saved) {
    Buffer& values = all.emplace_back();
    if (other == nullptr) continue;
    std::size_t size = 1;
    for (const std::size_t n : other->shape) size *= n;
    values = Buffer(size, other->type.dtype);
    weights.read(other->name, values.view());
  }
  return all;
}

void put_in_place(const std::vector<Buffer>& values,
                  const std::vector<OtherTensor>& others) noexcept {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!values[i].empty())
      std::memcpy(others[i].values.data(), values[i].data(), values[i].bytes());
}

}  // namespace thinwire::checkpoint
