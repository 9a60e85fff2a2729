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

/// The format of huggingface/safetensors: eight bytes with the header's length,
/// a JSON header, the tensors without holes.
namespace thinwire::checkpoint {

/// Bytes of the header's length, which precedes it.
inline constexpr std::size_t kLengthBytes = 8;
/// The header's key for texts, which are no tensors.
inline constexpr std::string_view kMetadataKey = "__metadata__";

/// Type of a tensor's elements. If no DType is the type, `other` is its name in
/// a file, and elements are copied as `dtype`, which has their size.
struct TensorType {
  DType dtype = DType::kFloat32;
  std::string_view other{};
  bool operator==(const TensorType&) const = default;
};
/// "F32", "F16", "BF16", "F64", "I32", "I64", "U8", or `other`.
[[nodiscard]] std::string_view safetensors_name(TensorType type) noexcept;
[[nodiscard]] std::optional<TensorType> tensor_type_from(
    std::string_view name) noexcept;

/// A tensor and its place in a file.
struct TensorEntry {
  std::string name;
  TensorType type{};
  std::vector<std::size_t> shape{};
  std::uint64_t begin = 0;  ///< Byte in the file, header included.
  std::uint64_t bytes = 0;
  [[nodiscard]] std::uint64_t end() const noexcept { return begin + bytes; }
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

/// A whole header: what a file begins with, and where its tensors are.
struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< By offset.
  Metadata metadata;
  std::uint64_t data_begin = 0;
  std::uint64_t file_bytes = 0;

  [[nodiscard]] const TensorEntry* find(std::string_view name) const noexcept;
};

/// Throws Error(kInvalidArgument) if no file can have the tensor: its name is
/// "__metadata__", has control characters, or is not UTF-8 of up to 1024 bytes,
/// or it has more than 16 dimensions or 2^53 elements.
void require_tensor(std::string_view name, std::span<const std::size_t> shape);

/// Places tensors whose name, type and shape are given. Larger types come
/// first, and equal ones keep their order. Data begin at a multiple of 4096.
/// Throws as require_tensor(), and if a name is repeated or the header is
/// beyond 100,000,000 bytes.
[[nodiscard]] SafetensorsHeader place_tensors(std::vector<TensorEntry> tensors,
                                              Metadata metadata);
/// The bytes in front of the tensors, data_begin of them.
[[nodiscard]] std::string write_header(const SafetensorsHeader& header);

/// Most bytes of a header.
inline constexpr std::uint64_t kMostHeaderBytes = 100'000'000;
/// The header's length from the first eight bytes, checked against the file's
/// size and kMostHeaderBytes; throws Error(kCorruptCheckpoint) naming `file`.
[[nodiscard]] std::uint64_t header_bytes(std::string_view first_eight,
                                         std::uint64_t file_bytes,
                                         const std::string& file);
/// Whose file it is.
enum class Writer {
  kThis,   ///< Only headers as place_tensors() makes them.
  kOther,  ///< Unknown members are ignored; tensors may be
           ///< listed in any order and unaligned.
};
/// Parses the JSON text of a header. Throws Error(kCorruptCheckpoint), which
/// names `file` and the fault: no JSON, a repeated key, an unknown dtype, more
/// than 16 dimensions, or wrong offsets. Offsets are wrong if they overlap,
/// leave holes, do not fit the shape, or do not end with the file.
[[nodiscard]] SafetensorsHeader parse_header(std::string_view json,
                                             std::uint64_t file_bytes,
                                             const std::string& file,
                                             Writer writer = Writer::kThis);

}  // namespace thinwire::checkpoint
