// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "thinwire/core/dtype.h"

/// The format of huggingface/safetensors: the header's length in eight bytes, a
/// JSON header, and the tensors without gaps.
namespace thinwire::checkpoint {

/// Bytes that hold the header's length, in front of the header.
inline constexpr std::size_t kLengthBytes = 8;
/// The header's key for texts. It is not a tensor.
inline constexpr std::string_view kMetadataKey = "__metadata__";

/// Type of a tensor's elements. If no DType matches, `other` is the name in the
/// file, and elements are copied as `dtype`, which has the same size.
struct TensorType {
  DType dtype = DType::kFloat32;
  std::string_view other{};
  bool operator==(const TensorType&) const = default;
};
/// Returns "F32", "F16", "BF16", "F64", "I32", "I64", "U8", or `other`.
[[nodiscard]] std::string_view safetensors_name(TensorType type) noexcept;
[[nodiscard]] std::optional<TensorType> tensor_type_from(
    std::string_view name) noexcept;

/// A tensor and its place in a file.
struct TensorEntry {
  std::string name;
  TensorType type{};
  std::vector<std::size_t> shape{};
  std::uint64_t begin = 0;  ///< Offset of the first byte in the file.
  std::uint64_t bytes = 0;
  [[nodiscard]] std::uint64_t end() const noexcept { return begin + bytes; }
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

/// The header of a file, with the places of its tensors.
struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< Sorted by offset.
  Metadata metadata;
  std::uint64_t data_begin = 0;
  std::uint64_t file_bytes = 0;

  [[nodiscard]] const TensorEntry* find(std::string_view name) const noexcept;
};

/// Throws Error(kInvalidArgument) if the tensor cannot be in a file. Its name
/// must not be "__metadata__" or have control characters, and must be UTF-8 of
/// at most 1024 bytes. It must have at most 16 dimensions and 2^53 elements.
void require_tensor(std::string_view name, std::span<const std::size_t> shape);

/// Places tensors whose name, type and shape are given. Larger types come
/// first, and tensors of equal types keep their order. Data begin at a multiple
/// of 4096. Throws like require_tensor(), and if a name is repeated or the
/// header exceeds 100,000,000 bytes.
[[nodiscard]] SafetensorsHeader place_tensors(std::vector<TensorEntry> tensors,
                                              Metadata metadata);
/// Returns the data_begin bytes in front of the tensors.
[[nodiscard]] std::string write_header(const SafetensorsHeader& header);

/// Largest size of a header in bytes.
inline constexpr std::uint64_t kMostHeaderBytes = 100'000'000;
/// Returns the header's length from the first eight bytes, checked against the
/// file's size and kMostHeaderBytes. Throws Error(kCorruptCheckpoint), which
/// names `file`.
[[nodiscard]] std::uint64_t header_bytes(std::string_view first_eight,
                                         std::uint64_t file_bytes,
                                         const std::string& file);
/// The program that wrote a file.
enum class Writer {
  kThis,   ///< Only headers made by place_tensors() are accepted.
  kOther,  ///< Unknown members are ignored. Tensors may be in any order and
           ///< unaligned.
};
/// Parses the JSON text of a header. Throws Error(kCorruptCheckpoint), which
/// names `file` and the fault: invalid JSON, a repeated key, an unknown dtype,
/// more than 16 dimensions, or wrong offsets. Offsets are wrong if they
/// overlap, leave gaps, do not fit the shape, or do not end with the file.
[[nodiscard]] SafetensorsHeader parse_header(std::string_view json,
                                             std::uint64_t file_bytes,
                                             const std::string& file,
                                             Writer writer = Writer::kThis);

}  // namespace thinwire::checkpoint
