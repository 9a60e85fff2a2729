// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "thinwire/core/dtype.h"

/// The format of huggingface/safetensors: eight bytes with the header's length,
/// a JSON header, the tensors without holes.
namespace thinwire::checkpoint {

/// Of the header's length, in front of it.
inline constexpr std::size_t kLengthBytes = 8;
/// What the header calls the text that is no tensor.
inline constexpr std::string_view kMetadataKey = "__metadata__";

/// What a tensor's elements are; kBool has no DType, its bytes are kUInt8.
struct TensorType {
  DType dtype = DType::kFloat32;
  bool is_bool = false;
  bool operator==(const TensorType&) const = default;
};
/// "F32", "F16", "BF16", "F64", "I32", "I64", "U8", "BOOL".
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

/// Places tensors (name, type and shape are given): larger types first, else in
/// the order given, data from a multiple of 4096 on. Throws
/// Error(kInvalidArgument) for a name twice, "__metadata__", a name that is not
/// UTF-8 of up to 1024 bytes without control characters, more than 16
/// dimensions, and a header beyond 100,000,000 bytes.
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
  kThis,   ///< As place_tensors() makes them, or it is refused.
  kOther,  ///< Members that nobody here knows are ignored; tensors may be
           ///< written down in any order and lie off alignment.
};
/// Of the JSON text that follows. Throws Error(kCorruptCheckpoint) naming
/// `file` and what is wrong: not JSON, a key twice, an unknown dtype, more than
/// 16 dimensions, offsets that overlap, leave holes, do not fit the shape or do
/// not end with the file.
[[nodiscard]] SafetensorsHeader parse_header(std::string_view json,
                                             std::uint64_t file_bytes,
                                             const std::string& file,
                                             Writer writer = Writer::kThis);

}  // namespace thinwire::checkpoint
