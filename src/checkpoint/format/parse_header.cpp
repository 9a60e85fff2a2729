// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/format/fields.h"
#include "checkpoint/format/safetensors.h"
#include "core/json_text.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint {

namespace {

// The number of tensors is limited only by the header's size. One tensor needs
// about ten values.
constexpr JsonLimits kHeaderLimits{kMostHeaderBytes, 16, std::size_t{1} << 20};

class HeaderReader {
 public:
  HeaderReader(const std::string& file, Writer writer)
      : file_(file), writer_(writer) {}

  void take(const std::string& name, const JsonValue& value) {
    if (name == kMetadataKey)
      take_metadata(value);
    else
      header_.tensors.push_back(tensor(name, value));
  }

  SafetensorsHeader finish(std::uint64_t data_begin, std::uint64_t file_bytes) {
    auto& tensors = header_.tensors;
    if (writer_ == Writer::kOther)
      std::stable_sort(tensors.begin(), tensors.end(),
                       [](const TensorEntry& a, const TensorEntry& b) {
                         return std::pair(a.begin, a.end()) <
                                std::pair(b.begin, b.end());
                       });
    std::uint64_t end = 0;
    for (TensorEntry& tensor : tensors) {
      if (tensor.begin != end)
        fail(tensor.name, fmt::format("begins at {}, not at {}: tensors must "
                                      "follow one another without holes",
                                      tensor.begin, end));
      end = tensor.end();
      tensor.begin += data_begin;
    }
    if (end != file_bytes - data_begin)
      corrupt(file_, fmt::format("the tensors have {} bytes, the file has {} "
                                 "for them",
                                 end, file_bytes - data_begin));
    for (const TensorEntry& tensor : tensors)
      if (writer_ == Writer::kThis &&
          tensor.begin % size_of(tensor.type.dtype) != 0)
        fail(tensor.name, "is not aligned to its elements");
    header_.data_begin = data_begin;
    header_.file_bytes = file_bytes;
    return std::move(header_);
  }

 private:
  [[noreturn]] void fail(std::string_view tensor,
                         const std::string& what) const {
    corrupt(file_, fmt::format("tensor {} {}", brief_json(tensor), what));
  }

  void take_metadata(const JsonValue& value) {
    if (!value.is_object())
      corrupt(file_, "__metadata__ must be an object of texts");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string())
        corrupt(file_, "__metadata__ must be an object of texts");
      header_.metadata.emplace_back(key, text.get<std::string>());
    }
  }

  const JsonValue& member(std::string_view tensor, const JsonValue& value,
                          std::string_view name) const {
    const JsonValue* const found = find_member(value, name);
    if (found == nullptr) fail(tensor, fmt::format("has no {}", name));
    return *found;
  }

  // Sets the tensor's begin relative to the end of the header.
  TensorEntry tensor(const std::string& name, const JsonValue& value) const {
    if (const auto problem = problem_of_name(name); !problem.empty())
      fail(name, std::string(problem));
    if (!value.is_object()) fail(name, "must be an object");
    if (writer_ == Writer::kThis && value.size() > 3)
      fail(name, "has members beside dtype, shape and data_offsets");
    TensorEntry entry{name};
    const JsonValue& dtype = member(name, value, "dtype");
    const auto type =
        dtype.is_string()
            ? tensor_type_from(dtype.get_ref<const std::string&>())
            : std::nullopt;
    if (!type)
      fail(name, fmt::format("has the unknown dtype {}", brief_json(dtype)));
    entry.type = *type;
    const JsonValue& shape = member(name, value, "shape");
    auto sizes = shape_in(shape);
    const auto elements = sizes ? elements_of(*sizes) : std::nullopt;
    if (!elements)
      fail(name, fmt::format("has the shape {}: not up to 16 sizes with up to "
                             "2^53 elements",
                             brief_json(shape)));
    entry.shape = std::move(*sizes);
    place(entry, *elements, member(name, value, "data_offsets"));
    return entry;
  }

  void place(TensorEntry& entry, std::uint64_t elements,
             const JsonValue& offsets) const {
    const bool are_two = offsets.is_array() && offsets.size() == 2;
    const auto begin = are_two ? size_in(offsets[0]) : std::nullopt;
    const auto end = are_two ? size_in(offsets[1]) : std::nullopt;
    if (!begin || !end || *begin > *end)
      fail(entry.name, fmt::format("has the data_offsets {}: not two sizes, "
                                   "the second no smaller",
                                   brief_json(offsets)));
    entry.begin = *begin;
    entry.bytes = *end - *begin;
    // The product cannot overflow, because there are at most 2^53 elements of
    // at most 8 bytes each.
    const std::uint64_t bytes = elements * size_of(entry.type.dtype);
    if (entry.bytes != bytes)
      fail(entry.name, fmt::format("has {} bytes, its shape and dtype need {}",
                                   entry.bytes, bytes));
  }

  const std::string& file_;
  Writer writer_;
  SafetensorsHeader header_;
};

}  // namespace

std::uint64_t header_bytes(std::string_view first_eight,
                           std::uint64_t file_bytes, const std::string& file) {
  if (file_bytes < kLengthBytes || first_eight.size() != kLengthBytes)
    corrupt(file, fmt::format("{} bytes are no safetensors file", file_bytes));
  std::uint64_t length = 0;
  std::memcpy(&length, first_eight.data(), kLengthBytes);
  if (length > kMostHeaderBytes)
    corrupt(file, fmt::format("the header has {} bytes, at most {} are allowed",
                              length, kMostHeaderBytes));
  if (length > file_bytes - kLengthBytes)
    corrupt(file, fmt::format("a header of {} bytes in a file of {}", length,
                              file_bytes));
  return length;
}

SafetensorsHeader parse_header(std::string_view json, std::uint64_t file_bytes,
                               const std::string& file, Writer writer) {
  if (json.size() > kMostHeaderBytes || file_bytes < kLengthBytes ||
      json.size() > file_bytes - kLengthBytes)
    corrupt(file, fmt::format("a header of {} bytes in a file of {}",
                              json.size(), file_bytes));
  // The reference reader requires the brace as the first byte.
  if (!json.starts_with('{')) corrupt(file, "the header is not a JSON object");
  HeaderReader reader(file, writer);
  try {
    read_json_members(
        json, kHeaderLimits,
        [&](const std::string& name, const JsonValue& value, bool is_element) {
          if (!is_element) reader.take(name, value);
        });
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCorruptCheckpoint) throw;
    corrupt(file, fmt::format("the header: {}", error.what()));
  }
  return reader.finish(kLengthBytes + json.size(), file_bytes);
}

}  // namespace thinwire::checkpoint
