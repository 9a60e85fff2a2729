// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "thinwire/core/dtype.h"

/// Numbers to test with, the same for the same seed.
namespace thinwire::test {

inline std::vector<float> normal(std::size_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(size);
  for (float& value : values) value = distribution(random);
  return values;
}

inline std::vector<float> positive(std::size_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> distribution(0.01f, 2.0f);
  std::vector<float> values(size);
  for (float& value : values) value = distribution(random);
  return values;
}

inline std::vector<std::uint32_t> random_words(std::size_t size,
                                               std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::uint32_t> words(size);
  for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random());
  return words;
}

/// Returns the values that fail first: NaN, infinities, zeros, subnormals,
/// extremes.
inline std::vector<float> special_values() {
  using limits = std::numeric_limits<float>;
  return {limits::quiet_NaN(),
          -limits::quiet_NaN(),
          limits::infinity(),
          -limits::infinity(),
          0.0f,
          -0.0f,
          limits::denorm_min(),
          -limits::denorm_min(),
          3e-39f,
          limits::min(),
          limits::max(),
          limits::lowest(),
          65504.0f,
          65520.0f,
          0x1p-24f,
          0x1p-25f};
}

/// Returns normal values, every third one replaced by a special value.
inline std::vector<float> normal_and_special(std::size_t size,
                                             std::uint32_t seed) {
  std::vector<float> values = normal(size, seed);
  const std::vector<float> special = special_values();
  for (std::size_t i = 0; i < size; i += 3) {
    values[i] = special[(i / 3 + seed) % special.size()];
  }
  return values;
}

/// Returns the values rounded to T.
template <class T>
std::vector<T> rounded_to(const std::vector<float>& values) {
  std::vector<T> result;
  result.reserve(values.size());
  for (const float value : values) {
    if constexpr (std::is_same_v<T, Half>) {
      result.push_back(to_half(value));
    } else if constexpr (std::is_same_v<T, BFloat16>) {
      result.push_back(to_bfloat16(value));
    } else {
      result.push_back(value);
    }
  }
  return result;
}

}  // namespace thinwire::test
