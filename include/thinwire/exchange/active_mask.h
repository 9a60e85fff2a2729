// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "thinwire/exchange/block_layout.h"

namespace thinwire::exchange {

/// Elements that take part: bit i of a block's words is 0 if its element i is
/// masked. Equal on all ranks. A mask fits every layout with the same units and
/// block options; only `bits` may differ.
class ActiveMask {
 public:
  ActiveMask() = default;  ///< Every element takes part.
  /// Masks every element i of the caller's flat array for which `is_active(i)`
  /// is false.
  ActiveMask(const BlockLayout& layout,
             const std::function<bool(std::size_t)>& is_active);

  /// Adds the elements of a block whose bit is 1 in `words`, which has the
  /// layout of words(). They must not have taken part before.
  void add(const BlockLayout& layout, std::size_t block,
           std::span<const std::uint32_t> words);

  /// Returns the words of a block, or null if the whole block takes part.
  [[nodiscard]] const std::uint32_t* words(const BlockLayout& layout,
                                           std::size_t block) const;
  /// Returns the number of the block's elements that take part.
  [[nodiscard]] std::size_t count(const BlockLayout& layout,
                                  std::size_t block) const;
  [[nodiscard]] bool everything() const noexcept { return counts_.empty(); }

 private:
  std::vector<std::uint32_t> words_;
  std::vector<std::size_t> first_word_;  // per block
  std::vector<std::size_t> counts_;      // per block
};

/// Returns whether element `i` of a block takes part, by ActiveMask::words().
[[nodiscard]] inline bool is_active(const std::uint32_t* words, std::size_t i) {
  return words == nullptr || (words[i / 32] >> (i % 32) & 1u) != 0;
}

}  // namespace thinwire::exchange
