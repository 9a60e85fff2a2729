// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/format/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "checkpoint/format/fields.h"
#include "core/json_text.h"
#include "core/require.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint {

static_assert(std::endian::native == std::endian::little,
              "tensors are written with the bytes of memory");

namespace {

constexpr std::uint64_t kDataAlignment = 4096;

struct NamedType {
  std::string_view name;
  TensorType type;
};
constexpr NamedType without_dtype(std::string_view name, DType same_size) {
  return {name, {same_size, name}};
}
constexpr std::array kTypes{NamedType{"F32", {DType::kFloat32}},
                            NamedType{"F16", {DType::kFloat16}},
                            NamedType{"BF16", {DType::kBFloat16}},
                            NamedType{"F64", {DType::kFloat64}},
                            NamedType{"I32", {DType::kInt32}},
                            NamedType{"I64", {DType::kInt64}},
                            NamedType{"U8", {DType::kUInt8}},
                            without_dtype("BOOL", DType::kUInt8),
                            without_dtype("I8", DType::kUInt8),
                            without_dtype("F8_E4M3", DType::kUInt8),
                            without_dtype("F8_E4M3FNUZ", DType::kUInt8),
                            without_dtype("F8_E5M2", DType::kUInt8),
                            without_dtype("F8_E5M2FNUZ", DType::kUInt8),
                            without_dtype("I16", DType::kFloat16),
                            without_dtype("U16", DType::kFloat16),
                            without_dtype("U32", DType::kInt32),
                            without_dtype("U64", DType::kInt64),
                            without_dtype("C64", DType::kInt64)};

std::string json_text(std::string_view text) { return compact_json(text); }

void require_name(std::string_view kind, std::string_view name) {
  if (const std::string_view problem = problem_of_name(name); !problem.empty())
    reject(fmt::format("{} name {} {}", kind, brief_json(name.substr(0, 40)),
                       problem));
}

// Returns the JSON text, padded so that tensors begin at a multiple of
// kDataAlignment.
std::string header_json(const SafetensorsHeader& header,
                        std::uint64_t data_begin) {
  std::string json = fmt::format("{{{}:{{", json_text(kMetadataKey));
  const char* separator = "";
  for (const auto& [key, value] : header.metadata) {
    json += fmt::format("{}{}:{}", separator, json_text(key), json_text(value));
    separator = ",";
  }
  json += '}';
  for (const TensorEntry& tensor : header.tensors)
    json += fmt::format(
        R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
        json_text(tensor.name), safetensors_name(tensor.type),
        fmt::join(tensor.shape, ","), tensor.begin - data_begin,
        tensor.end() - data_begin);
  json += '}';
  const std::uint64_t used = kLengthBytes + json.size();
  json.append((kDataAlignment - used % kDataAlignment) % kDataAlignment, ' ');
  return json;
}

}  // namespace

std::string_view safetensors_name(TensorType type) noexcept {
  const auto found =
      std::find_if(kTypes.begin(), kTypes.end(),
                   [&](const NamedType& known) { return known.type == type; });
  return found == kTypes.end() ? std::string_view("U8") : found->name;
}

std::optional<TensorType> tensor_type_from(std::string_view name) noexcept {
  for (const NamedType& known : kTypes)
    if (known.name == name) return known.type;
  return std::nullopt;
}

const TensorEntry* SafetensorsHeader::find(
    std::string_view name) const noexcept {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(),
                   [&](const TensorEntry& t) { return t.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

void require_tensor(std::string_view name, std::span<const std::size_t> shape) {
  require_name("tensor", name);
  if (name == kMetadataKey)
    reject(
        "a tensor must not be named __metadata__, which safetensors keeps "
        "for itself");
  if (shape.size() > kMostDimensions)
    reject(fmt::format("tensor '{}' must have up to {} dimensions, got {}",
                       name, kMostDimensions, shape.size()));
  if (!elements_of(shape))
    reject(fmt::format("tensor '{}' must have up to 2^53 elements", name));
}

SafetensorsHeader place_tensors(std::vector<TensorEntry> tensors,
                                Metadata metadata) {
  std::unordered_set<std::string_view> names;
  for (const TensorEntry& tensor : tensors) {
    require_tensor(tensor.name, tensor.shape);
    if (!names.insert(tensor.name).second)
      reject(fmt::format("tensor '{}' appears twice", tensor.name));
  }
  std::unordered_set<std::string_view> keys;
  for (const auto& [key, value] : metadata) {
    require_name("metadata", key);
    if (!keys.insert(key).second)
      reject(fmt::format("metadata '{}' appears twice", key));
    if (!is_utf8(value))
      reject(fmt::format("metadata '{}' must be UTF-8", key));
  }
  names.clear();  // The names point into the vector, which is sorted below.

  SafetensorsHeader header;
  header.tensors = std::move(tensors);
  header.metadata = std::move(metadata);
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorEntry& a, const TensorEntry& b) {
                     return size_of(a.type.dtype) > size_of(b.type.dtype);
                   });
  std::uint64_t bytes = 0;
  for (TensorEntry& tensor : header.tensors) {
    tensor.begin = bytes;
    tensor.bytes = *elements_of(tensor.shape) * size_of(tensor.type.dtype);
    bytes += tensor.bytes;
    if (bytes > kMostSize)
      reject(fmt::format("tensors up to '{}' must have up to 2^53 bytes",
                         tensor.name));
  }
  const std::uint64_t json = header_json(header, 0).size();
  if (json > kMostHeaderBytes)
    reject(fmt::format(
        "the header of {} tensors has {} bytes, at most {} are allowed",
        header.tensors.size(), json, kMostHeaderBytes));
  header.data_begin = kLengthBytes + json;
  for (TensorEntry& tensor : header.tensors) tensor.begin += header.data_begin;
  header.file_bytes = header.data_begin + bytes;
  return header;
}

std::string write_header(const SafetensorsHeader& header) {
  const std::string json = header_json(header, header.data_begin);
  const std::uint64_t length = json.size();
  std::string text(kLengthBytes, '\0');
  std::memcpy(text.data(), &length, kLengthBytes);
  return text + json;
}

}  // namespace thinwire::checkpoint
