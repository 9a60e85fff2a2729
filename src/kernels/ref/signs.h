// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "thinwire/kernels/sign_compress.h"

/// Access to single elements of bits and masks, for the reference kernels.
namespace thinwire::kernels::ref {

inline bool bit(const std::uint32_t* words, std::size_t i) {
  return (words[i / 32] >> (i % 32) & 1u) != 0;
}

inline bool masked(const std::uint32_t* active, std::size_t i) {
  return active != nullptr && !bit(active, i);
}

inline float value_of(Signs signs, std::size_t i) {
  return bit(signs.words, i) ? signs.scale : -signs.scale;
}

}  // namespace thinwire::kernels::ref
