// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "thinwire/exchange/block_layout.h"

namespace thinwire::exchange {

/// Which elements take part: bit i of a block's words is 0 where its element i
/// is masked. Equal on all ranks. Fits every layout of the same units and block
/// options but for `bits`.
class ActiveMask {
 public:
  ActiveMask() = default;  ///< Everything takes part.
  /// `is_active(i)` for every element i of the caller's flat array.
  ActiveMask(const BlockLayout& layout,
             const std::function<bool(std::size_t)>& is_active);

  /// Elements of a block take part from now on: those whose bit is 1 in
  /// `words`, laid out as words() are; none of them did before.
  void add(const BlockLayout& layout, std::size_t block,
           std::span<const std::uint32_t> words);

  /// Null if the whole block takes part.
  [[nodiscard]] const std::uint32_t* words(const BlockLayout& layout,
                                           std::size_t block) const;
  /// Elements of the block that take part.
  [[nodiscard]] std::size_t count(const BlockLayout& layout,
                                  std::size_t block) const;
  [[nodiscard]] bool everything() const noexcept { return counts_.empty(); }

 private:
  std::vector<std::uint32_t> words_;
  std::vector<std::size_t> first_word_;  // per block
  std::vector<std::size_t> counts_;      // per block
};

}  // namespace thinwire::exchange
