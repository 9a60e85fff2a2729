// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace thinwire::train_gpt {

/// Sequences of bytes, one after the other. Of each the first `context` bytes
/// are read, and every byte but the first is to be predicted.
struct Batch {
  std::size_t sequences = 0;
  std::size_t context = 0;
  std::vector<std::uint8_t> bytes;  ///< sequences x (context + 1).
};

}  // namespace thinwire::train_gpt
