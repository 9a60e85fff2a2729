// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/read/saved_arrays.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "checkpoint/format/fields.h"
#include "core/require.h"

namespace thinwire::checkpoint {

namespace {

bool is_by_element(const SavedArray& array) {
  return array.axis == optim::Axis::kElement;
}
std::span<std::byte> bytes_of(View view) {
  return {static_cast<std::byte*>(view.data()), view.bytes()};
}

}  // namespace

bool SavedArrays::is_per_rank(const SavedArray& array) noexcept {
  return array.sharing == optim::Sharing::kOwn ||
         array.sharing == optim::Sharing::kMean;
}

const SavedArrays::Array& SavedArrays::array(std::string_view name) const {
  const auto found = arrays_.find(name);
  if (found == arrays_.end())
    corrupt(directory_, fmt::format("it has no array '{}'", name));
  return found->second;
}

const SavedArrays::Part* SavedArrays::part(std::string_view name,
                                           int rank) const {
  const Array& found = array(name);
  const auto part = found.parts.find(is_per_rank(*found.saved) ? rank : -1);
  return part == found.parts.end() ? nullptr : &part->second;
}

std::span<const SavedPiece> SavedArrays::pieces(std::string_view name,
                                                int rank) const {
  const Part* const found = part(name, rank);
  if (found == nullptr || found->pieces == nullptr) return {};
  return *found->pieces;
}

std::vector<SavedPiece> SavedArrays::pieces(std::string_view name, int rank,
                                            std::size_t parameter,
                                            Range range) const {
  std::vector<SavedPiece> found;
  if (range.size == 0) return found;
  const auto all = pieces(name, rank);
  const bool by_element = is_by_element(*array(name).saved);
  // The first piece that ends after the begin of the range.
  const auto first = std::partition_point(
      all.begin(), all.end(), [&](const SavedPiece& piece) {
        return std::pair(piece.parameter, piece.range.end()) <=
               std::pair(parameter, range.offset);
      });
  for (auto piece = first; piece != all.end(); ++piece) {
    if (piece->parameter != parameter || piece->range.offset >= range.end())
      break;
    const std::size_t begin = std::max(piece->range.offset, range.offset);
    const std::size_t end = std::min(piece->range.end(), range.end());
    SavedPiece cut = *piece;
    cut.range = {begin, end - begin};
    if (by_element) cut.value += begin - piece->range.offset;
    found.push_back(cut);
  }
  return found;
}

void SavedArrays::read(std::string_view name, int rank, std::size_t parameter,
                       Range range, View to) {
  const SavedArray& saved = *array(name).saved;
  if (!is_by_element(saved) || to.dtype() != saved.dtype ||
      to.size() != range.size)
    reject(fmt::format("array '{}' cannot be read by element into {} {}", name,
                       to.size(), to_string(to.dtype())));
  std::size_t at = range.offset;
  const auto require_there = [&](std::size_t end) {
    if (at != end)
      corrupt(
          directory_,
          fmt::format("elements {}-{} of '{}' are in no file of {}", at,
                      end - 1, manifest_.parameters.at(parameter).name, name));
  };
  for (const SavedPiece& piece : pieces(name, rank, parameter, range)) {
    require_there(piece.range.offset);
    read_values(*part(name, rank), piece.file, piece.value,
                to.subview(at - range.offset, piece.range.size));
    at = piece.range.end();
  }
  require_there(range.end());
}

std::size_t SavedArrays::num_values(std::string_view name, int rank) const {
  const Part* const found = part(name, rank);
  std::size_t values = 0;
  if (found == nullptr) return 0;
  for (const auto& [file, tensor] : found->tensors)
    values += tensor->bytes / size_of(tensor->type.dtype);
  return values;
}

Buffer SavedArrays::read_all(std::string_view name, int rank) {
  const SavedArray& saved = *array(name).saved;
  const Part* const found = part(name, rank);
  if (found == nullptr) return Buffer(0, saved.dtype);
  if (saved.axis == optim::Axis::kParameter && found->pieces != nullptr)
    return read_named(*found, saved.dtype);
  Buffer all(num_values(name, rank), saved.dtype);
  if (found->pieces == nullptr) {
    read_values(*found, found->tensors.begin()->first, 0, all.view());
    return all;
  }
  const auto list = pieces(name, rank);
  const auto values_of = [&](const SavedPiece& piece) {
    return is_by_element(saved) ? piece.range.size : std::size_t{1};
  };
  std::size_t at = 0;
  for (std::size_t i = 0; i < list.size();) {
    // Adjacent pieces of a file are read together.
    std::size_t count = 0;
    std::size_t k = i;
    do count += values_of(list[k++]);
    while (k < list.size() && list[k].file == list[i].file &&
           list[k].value == list[i].value + count);
    read_values(*found, list[i].file, list[i].value,
                all.view().subview(at, count));
    at += count;
    i = k;
  }
  return all;
}

// Elements of frozen parameters are 0.
Buffer SavedArrays::read_named(const Part& part, DType dtype) {
  Buffer all(sizes_.size(), dtype, Fill::kZeros);
  for (const SavedPiece& piece : *part.pieces)
    read_values(part, piece.file, piece.value,
                all.view().subview(piece.parameter, 1));
  return all;
}

void SavedArrays::read_values(const Part& part, std::size_t number,
                              std::uint64_t value, View to) {
  const TensorEntry& tensor = *part.tensors.at(number);
  file(number).read(tensor.begin + value * size_of(to.dtype()), bytes_of(to));
}

// Only the file in use keeps its chunk in memory.
VerifiedFile& SavedArrays::file(std::size_t number) {
  if (number != last_file_) forget_chunk();
  last_file_ = number;
  return *files_[number];
}

void SavedArrays::forget_chunk() noexcept {
  if (!files_.empty() && files_[last_file_] != nullptr)
    files_[last_file_]->forget_chunk();
}

void SavedArrays::add_extra(int rank, std::string_view prefix, StateDict& to) {
  const std::string name = state_file_name(rank, manifest_.world);
  for (std::size_t i = 0; i < manifest_.files.size(); ++i) {
    if (manifest_.files[i].name != name) continue;
    std::optional<VerifiedFile> own;
    VerifiedFile& file = files_[i] != nullptr ? *files_[i]
                                              : own.emplace(system_, directory_,
                                                            manifest_.files[i]);
    for (const TensorEntry& tensor : file.header().tensors) {
      if (!tensor.name.starts_with(prefix)) continue;
      const DType dtype = tensor.type.dtype;
      Buffer values(tensor.bytes / size_of(dtype), dtype);
      file.read(tensor.begin, bytes_of(values.view()));
      to.put(tensor.name.substr(prefix.size()), std::move(values));
    }
    file.forget_chunk();
  }
}

StateDict SavedArrays::extra() {
  StateDict extra;
  extra.put_all("", manifest_.extra);
  add_extra(0, kExtra, extra);
  return extra;
}

StateDict SavedArrays::extra_of_rank(int rank) {
  StateDict extra;
  if (!manifest_.extra_of_ranks.empty())
    extra.put_all("", manifest_.extra_of_ranks[static_cast<std::size_t>(rank)]);
  add_extra(rank, kExtraOfRank, extra);
  return extra;
}

std::uint64_t SavedArrays::bytes_read() const noexcept {
  std::uint64_t bytes = 0;
  for (const auto& one : files_)
    if (one != nullptr) bytes += one->bytes_read();
  return bytes;
}

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
