// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "thinwire/core/buffer.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"
#include "thinwire/kernels/denominator_codes.h"

namespace thinwire::lean {

/// fp32 values of all parameters. They are the parameters themselves or, if
/// these are bf16, the parameters together with the missing 16 bits
/// (kernels/split_float.h).
class FullParameters {
 public:
  /// Uses the caller's memory, which is fp32 or bf16.
  explicit FullParameters(View params) : params_(params) {}

  [[nodiscard]] bool are_split() const {
    return params_.dtype() == DType::kBFloat16;
  }
  [[nodiscard]] View params() const { return params_; }
  /// Allocates the lower bits and sets them to 0, so that the values equal the
  /// parameters.
  void begin();
  /// Frees the lower bits.
  void end() { low_bits_ = Buffer(); }

  void read(Range range, std::span<float> to) const;
  void write(Range range, std::span<const float> values);
  /// Points the arrays of an update at the elements of `range`.
  void point(Range range, kernels::CodedUpdateArrays& arrays);

  /// Returns the lower 16 bits of each element, or nothing if parameters are
  /// not split.
  [[nodiscard]] std::span<const std::uint16_t> low_bits() const;
  [[nodiscard]] Buffer& low_buffer() { return low_bits_; }
  /// Allocates the lower bits of `size` elements.
  [[nodiscard]] static Buffer make_low_bits(std::size_t size);
  [[nodiscard]] static std::span<std::uint16_t> bits_of(Buffer& buffer);

 private:
  const View params_;
  Buffer low_bits_;
};

}  // namespace thinwire::lean
