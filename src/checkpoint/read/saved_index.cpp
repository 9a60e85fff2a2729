// SPDX-License-Identifier: Apache-2.0
// The part of SavedArrays that finds the file of each value.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <tuple>

#include "checkpoint/format/fields.h"
#include "checkpoint/read/saved_arrays.h"

namespace thinwire::checkpoint {

namespace {

constexpr std::size_t kColumns = 3;  // parameter, first element, count

// For example, "state-00002-of-00004.safetensors" belongs to rank 1.
std::optional<int> rank_of(std::string_view name) {
  constexpr std::string_view kBegin = "state-";
  if (!name.starts_with(kBegin)) return std::nullopt;
  name.remove_prefix(kBegin.size());
  int number = 0;
  const auto read =
      std::from_chars(name.data(), name.data() + name.size(), number);
  name.remove_prefix(static_cast<std::size_t>(read.ptr - name.data()));
  if (read.ec != std::errc() || number < 1 || !name.starts_with("-of-"))
    return std::nullopt;
  return number - 1;
}

std::int64_t step_in(VerifiedFile& file) {
  const TensorEntry* const tensor = file.header().find("step");
  std::int64_t step = -1;
  if (tensor != nullptr && tensor->type == TensorType{DType::kInt64} &&
      tensor->bytes == sizeof(step))
    file.read(tensor->begin, std::as_writable_bytes(std::span(&step, 1)));
  if (step < 0) corrupt(file.path(), "'step' must be one int64 of at least 0");
  return step;
}

bool has_some_of(const SafetensorsHeader& header, std::string_view array) {
  const std::string begin = fmt::format("{}/", array);
  return std::ranges::any_of(header.tensors, [&](const TensorEntry& tensor) {
    return tensor.name.starts_with(begin);
  });
}

}  // namespace

std::string state_file_name(int rank, int world) {
  return fmt::format("state-{:05}-of-{:05}.safetensors", rank + 1, world);
}

SavedArrays::SavedArrays(FileSystem& files, std::string directory,
                         const Manifest& manifest)
    : system_(files),
      directory_(std::move(directory)),
      manifest_(manifest),
      files_(manifest.files.size()) {
  for (const SavedParameter& parameter : manifest.parameters)
    sizes_.push_back(elements_of(parameter.shape).value());
  for (const SavedArray& saved : manifest.arrays)
    arrays_[saved.name].saved = &saved;
  open();
  for (std::size_t i = 0; i < manifest.files.size(); ++i)
    for (const auto& [array, fragments] : manifest.files[i].tensors)
      add(i, array, fragments);
  for (auto& [name, array] : arrays_)
    for (auto& [rank, part] : array.parts) index(array, part);
  for (std::size_t i = 0; i < files_.size(); ++i)
    if (files_[i] != nullptr)
      files_[i]->describe_by([this, i](std::uint64_t begin, std::uint64_t end) {
        return describe(i, begin, end);
      });
}

void SavedArrays::open() {
  for (std::size_t i = 0; i < manifest_.files.size(); ++i) {
    if (manifest_.files[i].tensors.empty()) continue;
    files_[i] =
        std::make_unique<VerifiedFile>(system_, directory_, manifest_.files[i]);
    files_[i]->forget_chunk();
  }
}

void SavedArrays::add(std::size_t number, const std::string& name,
                      const std::string& fragments) {
  const VerifiedFile& holder = *files_[number];
  const auto found = arrays_.find(name);
  if (found == arrays_.end())
    corrupt(holder.path(),
            fmt::format("'{}' is none of the manifest's arrays", name));
  Array& array = found->second;
  const TensorEntry* const tensor = holder.header().find(name);
  if (tensor == nullptr || tensor->shape.size() != 1 ||
      tensor->type != TensorType{array.saved->dtype})
    corrupt(holder.path(),
            fmt::format("'{}' must be a tensor of one dimension and dtype {}",
                        name, to_string(array.saved->dtype)));
  const bool has_pieces = array.saved->axis == optim::Axis::kElement ||
                          array.saved->axis == optim::Axis::kRange;
  if (has_pieces == fragments.empty())
    corrupt(holder.path(), fmt::format("'{}' must {} an index tensor", name,
                                       has_pieces ? "have" : "not have"));
  int rank = -1;
  if (is_per_rank(*array.saved)) {
    const auto named = rank_of(manifest_.files[number].name);
    if (!named || *named >= manifest_.world)
      corrupt(holder.path(), fmt::format("the values of '{}' belong to one "
                                         "rank, but this file belongs to none",
                                         name));
    rank = *named;
  }
  Part& part = array.parts[rank];
  if (!part.tensors.emplace(number, tensor).second ||
      (!has_pieces && part.tensors.size() > 1))
    corrupt(holder.path(), fmt::format("'{}' appears twice", name));
  if (has_pieces) part.fragments.emplace_back(number, fragments);
}

void SavedArrays::index(const Array& array, Part& part) {
  if (part.fragments.empty()) return;
  const bool by_range = array.saved->axis == optim::Axis::kRange;
  auto& shared = indexes_[{by_range, part.fragments}];
  if (shared == nullptr) {
    Pieces all;
    for (const auto& [number, fragments] : part.fragments)
      append_rows(number, fragments, by_range,
                  part.tensors.at(number)->shape[0], all);
    const auto order = [](const SavedPiece& piece) {
      return std::tuple(piece.parameter, piece.range.offset);
    };
    std::sort(all.begin(), all.end(),
              [&](const SavedPiece& a, const SavedPiece& b) {
                return order(a) < order(b);
              });
    require_once(all, array.saved->name);
    shared = std::make_shared<const Pieces>(std::move(all));
  }
  part.pieces = shared;
  std::map<std::size_t, std::uint64_t> values;
  for (const SavedPiece& piece : *shared)
    values[piece.file] += by_range ? 1 : piece.range.size;
  for (const auto& [number, tensor] : part.tensors)
    if (tensor->shape[0] != values[number])
      corrupt(files_[number]->path(),
              fmt::format("'{}' has {} values, but its index tensor lists {}",
                          array.saved->name, tensor->shape[0], values[number]));
}

void SavedArrays::append_rows(std::size_t number, const std::string& fragments,
                              bool by_range, std::uint64_t tensor_values,
                              Pieces& to) {
  VerifiedFile& holder = file(number);
  const TensorEntry* const tensor = holder.header().find(fragments);
  if (tensor == nullptr || tensor->type != TensorType{DType::kInt64} ||
      tensor->shape.size() != 2 || tensor->shape[1] != kColumns)
    corrupt(holder.path(), fmt::format("'{}' must be a tensor of int64 [rows, "
                                       "{}]",
                                       fragments, kColumns));
  // The allocation is bounded by the size of the file.
  std::vector<std::array<std::int64_t, kColumns>> rows(tensor->shape[0]);
  holder.read(tensor->begin, std::as_writable_bytes(std::span(rows)));
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto [parameter, first, count] = rows[i];
    const bool is_known =
        parameter >= 0 && static_cast<std::uint64_t>(parameter) < sizes_.size();
    const std::uint64_t size =
        is_known ? sizes_[static_cast<std::size_t>(parameter)] : 0;
    if (!is_known || first < 0 || count < 1 ||
        static_cast<std::uint64_t>(first) > size ||
        static_cast<std::uint64_t>(count) >
            size - static_cast<std::uint64_t>(first))
      corrupt(holder.path(),
              fmt::format("row {} of '{}', [{}, {}, {}], lies outside of the "
                          "parameters",
                          i, fragments, parameter, first, count));
    to.push_back(
        {static_cast<std::size_t>(parameter),
         {static_cast<std::size_t>(first), static_cast<std::size_t>(count)},
         number,
         value});
    value += by_range ? 1 : static_cast<std::uint64_t>(count);
    if (value > tensor_values)
      corrupt(
          holder.path(),
          fmt::format("'{}' lists more values than the file has", fragments));
  }
}

void SavedArrays::require_once(const Pieces& pieces,
                               const std::string& array) const {
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    const SavedPiece& before = pieces[i - 1];
    const SavedPiece& piece = pieces[i];
    if (before.parameter == piece.parameter &&
        before.range.end() > piece.range.offset)
      corrupt(files_[piece.file]->path(),
              fmt::format("element {} of '{}' appears twice in {}",
                          piece.range.offset,
                          manifest_.parameters[piece.parameter].name, array));
  }
}

// ---- files of other programs

namespace {

constexpr std::string_view kMasters = "masters";

struct NamedArray {
  std::string_view name;
  optim::Axis axis = optim::Axis::kElement;
  DType dtype = DType::kFloat32;
};
// Arrays that a file may lack.
constexpr std::array kOptionalArrays = {
    NamedArray{kMasters},
    NamedArray{"exp_avg_sq_fresh"},
    NamedArray{"lamb_coeff_freeze", optim::Axis::kParameter, DType::kFloat64},
    NamedArray{"lamb_coeff_count", optim::Axis::kParameter, DType::kInt64},
    NamedArray{"last_factor", optim::Axis::kParameter, DType::kFloat64},
    NamedArray{"scaling_coeff", optim::Axis::kParameter, DType::kFloat64}};

std::string semantics_in(const VerifiedFile& file) {
  for (const auto& [key, text] : file.header().metadata) {
    if (key != "semantics") continue;
    if (text != "corrected" && text != "deepspeed")
      corrupt(file.path(), fmt::format("the metadata 'semantics' must be "
                                       "corrected or deepspeed, got '{}'",
                                       text));
    return text;
  }
  return "corrected";
}

}  // namespace

void describe_named_states(FileSystem& files, const std::string& directory,
                           Manifest& manifest) {
  VerifiedFile file(files, fmt::format("{}/{}", directory, kNamedStates));
  manifest.step = step_in(file);
  manifest.scalars.put_integer("step", manifest.step);
  manifest.scalars.put_integer("skipped_steps", 0);
  manifest.semantics = semantics_in(file);
  manifest.arrays.push_back({"exp_avg", optim::Axis::kElement});
  manifest.arrays.push_back({"exp_avg_sq", optim::Axis::kElement});
  for (const auto& [name, axis, dtype] : kOptionalArrays)
    if (has_some_of(file.header(), name))
      manifest.arrays.push_back({.name = std::string(name),
                                 .axis = axis,
                                 .dtype = dtype,
                                 .is_parameters = name == kMasters});
}

// Positions of values count from the begin of the first tensor, across all
// tensors.
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
    part.pieces = std::make_shared<const Pieces>(named_pieces(saved));
  }
}

SavedArrays::Pieces SavedArrays::named_pieces(const SavedArray& array) const {
  const VerifiedFile& file = *files_.front();
  const bool by_element = array.axis == optim::Axis::kElement;
  Pieces pieces;
  for (std::size_t p = 0; p < sizes_.size(); ++p) {
    const SavedParameter& parameter = manifest_.parameters[p];
    const std::string name = array.name + '/' + parameter.name;
    const TensorEntry* const tensor = file.header().find(name);
    if (tensor == nullptr && !by_element &&
        file.header().find("exp_avg/" + parameter.name) != nullptr)
      corrupt(file.path(), fmt::format("it has no '{}'", name));
    if (tensor == nullptr || sizes_[p] == 0) continue;  // read() reports it.
    const std::uint64_t offset = tensor->begin - file.header().data_begin;
    const std::size_t each = size_of(array.dtype);
    const bool fits =
        by_element ? tensor->shape == parameter.shape : tensor->bytes == each;
    if (tensor->type != TensorType{array.dtype} || !fits || offset % each != 0)
      corrupt(
          file.path(),
          fmt::format("'{}' must be {} of {}, in a place that is a "
                      "multiple of {}",
                      name, to_string(array.dtype),
                      by_element ? "the shape of its parameter" : "one element",
                      each));
    pieces.push_back({.parameter = p,
                      .range = {0, static_cast<std::size_t>(sizes_[p])},
                      .file = 0,
                      .value = offset / each});
  }
  return pieces;
}

}  // namespace thinwire::checkpoint
