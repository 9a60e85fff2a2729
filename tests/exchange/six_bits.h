// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>

#include "exchange/codec/codec.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::test {

/// A codec of 6 bits per element: 31 levels each side of 0, and one scale.
class SixBits final : public exchange::ValueCodec {
 public:
  [[nodiscard]] std::size_t record_bytes(
      std::size_t elements) const noexcept override {
    return 4 + (elements * 6 + 31) / 32 * 4;
  }

  void encode(const kernels::QuantizedSum& sum,
              std::uint8_t* record) const override {
    float c[kernels::kMostSummed];
    const std::size_t size = sum.residual.size();
    const View all(std::span(c, size));
    kernels::convert(sum.residual, all);
    if (!sum.values.empty()) kernels::add_scaled(all, sum.values, sum.factor);
    float top = 0;
    for (std::size_t i = 0; i < size; ++i)
      if (std::fabs(c[i]) > top || std::isnan(c[i])) top = std::fabs(c[i]);
    const float step = top / 31;
    std::fill_n(record, record_bytes(size), std::uint8_t{0});
    exchange::set_scale(record, step);
    for (std::size_t i = 0; i < size; ++i) {
      float q = step == 0 ? 0 : std::nearbyint(c[i] / step);
      q = std::isnan(q) ? 0 : std::clamp(q, -31.0f, 31.0f);
      put(record, i, static_cast<std::uint32_t>(q + 31));
      c[i] = c[i] - q * step;
    }
    kernels::convert(all, sum.error);
  }

  void average(std::span<const std::uint8_t* const> records, float factor,
               std::span<float> mean) const override {
    for (std::size_t i = 0; i < mean.size(); ++i) {
      mean[i] = 0;
      for (const std::uint8_t* const record : records)
        mean[i] += level(record, i) * (exchange::scale_of(record) * factor);
    }
  }

  void decode(const std::uint8_t* record,
              std::span<float> values) const override {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = level(record, i) * exchange::scale_of(record);
  }

  void add(const std::uint8_t* record, View values) const override {
    float sum[kernels::kMostSummed];
    const View all(std::span(sum, values.size()));
    kernels::convert(values, all);
    for (std::size_t i = 0; i < values.size(); ++i)
      sum[i] += level(record, i) * exchange::scale_of(record);
    kernels::convert(all, values);
  }

 private:
  static void put(std::uint8_t* record, std::size_t i, std::uint32_t code) {
    std::uint32_t* const word = exchange::words_of(record) + 6 * i / 32;
    word[0] |= code << 6 * i % 32;
    if (6 * i % 32 > 26) word[1] |= code >> (32 - 6 * i % 32);
  }
  static float level(const std::uint8_t* record, std::size_t i) {
    const std::uint32_t* const word = exchange::words_of(record) + 6 * i / 32;
    std::uint32_t code = word[0] >> 6 * i % 32;
    if (6 * i % 32 > 26) code |= word[1] << (32 - 6 * i % 32);
    return static_cast<float>(static_cast<int>(code & 63) - 31);
  }
};

}  // namespace thinwire::test
