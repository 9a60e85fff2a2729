// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/format/fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "thinwire/core/error.h"

namespace thinwire::checkpoint {

void corrupt(const std::string& file, const std::string& what) {
  throw Error(ErrorCode::kCorruptCheckpoint, file + ": " + what);
}

bool is_utf8(std::string_view text) {
  try {
    static_cast<void>(nlohmann::json(text).dump());
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

std::string_view problem_of_name(std::string_view name) {
  if (name.size() > kMostNameBytes) return "is longer than 1024 bytes";
  if (!is_utf8(name)) return "is not UTF-8";
  const bool has_control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  return has_control ? "has a control character" : "";
}

bool is_file_name(std::string_view name) noexcept {
  const auto is_alphanumeric = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9');
  };
  return !name.empty() && name.size() <= 128 && is_alphanumeric(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) {
           return is_alphanumeric(c) || c == '.' || c == '_' || c == '-';
         });
}

std::optional<std::uint64_t> size_in(const JsonValue& value) {
  const auto integer = integer_in(value);
  if (!integer || *integer < 0 ||
      static_cast<std::uint64_t>(*integer) > kMostSize)
    return std::nullopt;
  return static_cast<std::uint64_t>(*integer);
}

std::optional<std::vector<std::size_t>> shape_in(const JsonValue& value) {
  if (!value.is_array() || value.size() > kMostDimensions) return std::nullopt;
  std::vector<std::size_t> shape;
  for (const JsonValue& element : value) {
    const auto size = size_in(element);
    if (!size) return std::nullopt;
    shape.push_back(*size);
  }
  return shape;
}

std::optional<std::uint64_t> elements_of(
    std::span<const std::size_t> shape) noexcept {
  std::uint64_t elements = 1;
  for (const std::size_t size : shape)
    if (__builtin_mul_overflow(elements, size, &elements)) return std::nullopt;
  if (elements > kMostSize) return std::nullopt;
  return elements;
}

}  // namespace thinwire::checkpoint
