// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "exchange/codec/codec.h"
#include "thinwire/kernels/sign_compress.h"

namespace thinwire::exchange {

/// One bit per element (kernels/sign_compress.h). Values and residuals are
/// computed while they are read.
class SignCodec final : public Codec {
 public:
  [[nodiscard]] std::size_t record_bytes(
      std::size_t elements) const noexcept override {
    return sizeof(float) +
           kernels::sign_words(elements) * sizeof(std::uint32_t);
  }

  /// Writes the record of input + residual and returns its scale. `block.words`
  /// need not be set.
  static float encode(const kernels::SignInput& input, kernels::SignBlock block,
                      std::uint8_t* record) {
    block.words = words_of(record);
    const float scale = kernels::sign_encode(input, block);
    set_scale(record, scale);
    return scale;
  }
  /// Decodes the records, multiplies each by `factor`, and adds them and the
  /// residual. Writes the record of this sum and returns its scale.
  static float average(std::span<const std::uint8_t* const> records,
                       float factor, kernels::SignBlock block,
                       std::uint8_t* record) {
    thread_local std::vector<kernels::Signs> signs;
    signs.clear();
    for (const std::uint8_t* const from : records)
      signs.push_back(decode(from));
    block.words = words_of(record);
    const float scale = kernels::sign_encode_average(signs, factor, block);
    set_scale(record, scale);
    return scale;
  }
  [[nodiscard]] static kernels::Signs decode(const std::uint8_t* record) {
    return {words_of(record), scale_of(record)};
  }
};

[[nodiscard]] inline const SignCodec& sign_codec() {
  static const SignCodec codec;
  return codec;
}

}  // namespace thinwire::exchange
