// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "thinwire/core/view.h"
#include "thinwire/kernels/quantize.h"

namespace thinwire::exchange {

/// A compression of one block. It defines the bytes of a block's record: a
/// float, which is the scale, followed by 32-bit words. The scale is not finite
/// if a value is not. A record of zero bytes decodes to zeros. All threads and
/// ranks of a process may use one codec at the same time.
class Codec {
 public:
  Codec() = default;
  virtual ~Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  /// Returns the size in bytes, a multiple of 4, of the record of a block. It
  /// depends only on `elements`.
  [[nodiscard]] virtual std::size_t record_bytes(
      std::size_t elements) const noexcept = 0;
};

/// A codec for arrays of values. Each call processes one block of at most
/// kernels::kMostSummed elements.
class ValueCodec : public Codec {
 public:
  /// Encodes c = values * factor + residual into `record`. Writes the error, c
  /// minus the decoded record, to `sum.error`. This has the residual's dtype
  /// and may be its memory.
  virtual void encode(const kernels::QuantizedSum& sum,
                      std::uint8_t* record) const = 0;
  /// Writes to `mean` the sum of the decoded records, each multiplied by
  /// `factor` and added in the given order. If a scale is not finite, all
  /// values become NaN.
  virtual void average(std::span<const std::uint8_t* const> records,
                       float factor, std::span<float> mean) const = 0;
  /// Averages the records, with the factor 1 / records.size().
  void average(std::span<const std::uint8_t* const> records,
               std::span<float> mean) const {
    average(records,
            static_cast<float>(1.0 / static_cast<double>(records.size())),
            mean);
  }
  /// Writes the decoded values of a record.
  virtual void decode(const std::uint8_t* record,
                      std::span<float> values) const = 0;
  /// Adds the decoded values in fp32 and rounds once to the dtype of `values`,
  /// which is fp32, fp16 or bf16.
  virtual void add(const std::uint8_t* record, View values) const = 0;
};

/// Returns the codec with this number of bits per element. Throws
/// Error(kInvalidArgument) if there is none.
[[nodiscard]] const ValueCodec& codec_of(int bits);
/// Throws Error(kInvalidArgument) with the option's `name` unless there is a
/// codec with this number of bits.
void require_bits(std::string_view name, int bits);
/// Like require_bits(), but also accepts 0, which stands for an exact exchange.
/// `advice` is appended to the message.
void require_bits_or_exact(std::string_view name, int bits,
                           std::string_view advice = {});
[[nodiscard]] bool has_codec(int bits) noexcept;
/// Returns the codec of 4 or 8 bits (kernels/quantize.h).
[[nodiscard]] std::unique_ptr<const ValueCodec> make_bits_codec(int bits);
/// Returns the numbers of bits that have a codec as a text, "4 or 8" or "0, 4
/// or 8".
[[nodiscard]] std::string known_bits(bool or_exact);
/// Adds a codec for a test, before any exchange exists; options accept it from
/// then on. factory.cpp adds the library's codecs. Throws
/// Error(kInvalidArgument) if these bits already have a codec.
void add_codec(int bits, std::unique_ptr<const ValueCodec> codec);

// ---- the fields of a record

[[nodiscard]] inline float scale_of(const std::uint8_t* record) {
  float scale = 0;
  std::memcpy(&scale, record, sizeof scale);
  return scale;
}

inline void set_scale(std::uint8_t* record, float scale) {
  std::memcpy(record, &scale, sizeof scale);
}

[[nodiscard]] inline const std::uint32_t* words_of(const std::uint8_t* record) {
  return reinterpret_cast<const std::uint32_t*>(record + sizeof(float));
}

[[nodiscard]] inline std::uint32_t* words_of(std::uint8_t* record) {
  return reinterpret_cast<std::uint32_t*>(record + sizeof(float));
}

}  // namespace thinwire::exchange
