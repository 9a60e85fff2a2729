// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/values.h"
#include "thinwire/kernels/sign_compress.h"

namespace thinwire::test {

/// Masks for `size` elements: none; random; nearly nothing masked; everything
/// masked. Bits past the end are arbitrary.
inline std::vector<std::vector<std::uint32_t>> masks(std::size_t size) {
  const std::size_t words = kernels::sign_words(size);
  std::vector<std::uint32_t> mostly_whole(words, 0xffff'ffffu);
  for (std::size_t w = 0; w < words; w += 3) mostly_whole[w] = 0xfffe'7fffu;
  return {{},
          random_words(words, 11),
          mostly_whole,
          std::vector<std::uint32_t>(words, 0u)};
}

/// Returns what kernels take: null for no mask.
inline const std::uint32_t* active(const std::vector<std::uint32_t>& mask) {
  return mask.empty() ? nullptr : mask.data();
}

}  // namespace thinwire::test
