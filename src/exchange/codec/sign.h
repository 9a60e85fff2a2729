// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "exchange/codec/codec.h"
#include "thinwire/kernels/sign_compress.h"

namespace thinwire::exchange {

/// One bit per element: kernels/sign_compress.h. Values are formed as they are
/// read, and residuals as they are next needed.
class SignCodec final : public Codec {
 public:
  [[nodiscard]] std::size_t record_bytes(
      std::size_t elements) const noexcept override {
    return sizeof(float) +
           kernels::sign_words(elements) * sizeof(std::uint32_t);
  }

  /// Writes the record of input + residual. `block.words` need not be set.
  /// Returns the scale.
  static float encode(const kernels::SignInput& input, kernels::SignBlock block,
                      std::uint8_t* record);
  /// Writes the record of the sum of what the records stand for, each times
  /// `factor`, plus the residual. Returns the scale.
  static float average(std::span<const std::uint8_t* const> records,
                       float factor, kernels::SignBlock block,
                       std::uint8_t* record);
  [[nodiscard]] static kernels::Signs decode(const std::uint8_t* record) {
    return {words_of(record), scale_of(record)};
  }
};

[[nodiscard]] const SignCodec& sign_codec();

}  // namespace thinwire::exchange
