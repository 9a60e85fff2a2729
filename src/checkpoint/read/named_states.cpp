// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/read/named_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "checkpoint/format/fields.h"
#include "checkpoint/read/saved_arrays.h"
#include "checkpoint/read/verified_file.h"

namespace thinwire::checkpoint {
namespace {

std::int64_t step_in(VerifiedFile& file) {
  const TensorEntry* const tensor = file.header().find("step");
  std::int64_t step = -1;
  if (tensor != nullptr && tensor->type == TensorType{DType::kInt64} &&
      tensor->bytes == sizeof(step))
    file.read(tensor->begin, std::as_writable_bytes(std::span(&step, 1)));
  if (step < 0) corrupt(file.path(), "'step' must be one int64 of at least 0");
  return step;
}

bool has_some_of(const SafetensorsHeader& header, const std::string& array) {
  return std::any_of(header.tensors.begin(), header.tensors.end(),
                     [&](const TensorEntry& tensor) {
                       return tensor.name.starts_with(array + '/');
                     });
}

}  // namespace

void describe_named_states(FileSystem& files, const std::string& directory,
                           Manifest& manifest) {
  VerifiedFile file(files, fmt::format("{}/{}", directory, kNamedStates));
  manifest.step = step_in(file);
  manifest.scalars.put_integer("step", manifest.step);
  manifest.scalars.put_integer("skipped_steps", 0);
  const auto add = [&](const char* array) -> SavedArray& {
    manifest.arrays.push_back({array, optim::Axis::kElement});
    return manifest.arrays.back();
  };
  add("exp_avg");
  add("exp_avg_sq");
  if (has_some_of(file.header(), "masters"))
    add("masters").is_parameters = true;
}

// Values are counted from the first tensor on, whatever lies between them.
SavedArrays::SavedArrays(FileSystem& files, const std::string& directory,
                         const Manifest& manifest, NamedStates)
    : system_(files), directory_(directory), manifest_(manifest) {
  files_.push_back(std::make_unique<VerifiedFile>(
      files, fmt::format("{}/{}", directory, kNamedStates)));
  const SafetensorsHeader& header = files_.front()->header();
  all_of_file_ = {.name = "all",
                  .begin = header.data_begin,
                  .bytes = header.file_bytes - header.data_begin};
  for (const SavedParameter& parameter : manifest.parameters)
    sizes_.push_back(elements_of(parameter.shape).value());
  for (const SavedArray& saved : manifest.arrays) {
    Array& array = arrays_[saved.name];
    array.saved = &saved;
    Part& part = array.parts[-1];
    part.tensors.emplace(0, &all_of_file_);
    part.pieces = std::make_shared<const Pieces>(named_pieces(saved.name));
  }
}

SavedArrays::Pieces SavedArrays::named_pieces(const std::string& array) const {
  const VerifiedFile& file = *files_.front();
  Pieces pieces;
  for (std::size_t p = 0; p < sizes_.size(); ++p) {
    const SavedParameter& parameter = manifest_.parameters[p];
    const std::string name = array + '/' + parameter.name;
    const TensorEntry* const tensor = file.header().find(name);
    if (tensor == nullptr || sizes_[p] == 0) continue;  // read() says so
    const std::uint64_t offset = tensor->begin - file.header().data_begin;
    if (tensor->type != TensorType{DType::kFloat32} ||
        tensor->shape != parameter.shape || offset % sizeof(float) != 0)
      corrupt(file.path(),
              fmt::format("'{}' must be float32 of the shape of its parameter, "
                          "in a place that is a multiple of 4",
                          name));
    pieces.push_back({.parameter = p,
                      .range = {0, static_cast<std::size_t>(sizes_[p])},
                      .file = 0,
                      .value = offset / sizeof(float)});
  }
  return pieces;
}

}  // namespace thinwire::checkpoint
