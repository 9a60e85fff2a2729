// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/active_mask.h"

#include <bit>

#include "thinwire/kernels/sign_compress.h"

namespace thinwire::exchange {

ActiveMask::ActiveMask(const BlockLayout& layout,
                       const std::function<bool(std::size_t)>& is_active) {
  counts_.assign(layout.blocks().size(), 0);
  bool everything = true;
  for (std::size_t b = 0; b < counts_.size(); ++b) {
    const Block& block = layout.blocks()[b];
    first_word_.push_back(words_.size());
    words_.resize(words_.size() + kernels::sign_words(block.residual.size));
    for (std::size_t i = 0; i < block.values.size; ++i) {
      if (!is_active(block.values.offset + i)) continue;
      words_[first_word_[b] + i / 32] |= std::uint32_t{1} << (i % 32);
      ++counts_[b];
    }
    everything = everything && counts_[b] == block.values.size;
  }
  if (everything) *this = ActiveMask();
}

void ActiveMask::add(const BlockLayout& layout, std::size_t block,
                     std::span<const std::uint32_t> words) {
  for (std::size_t w = 0; w < words.size(); ++w) {
    words_[first_word_[block] + w] |= words[w];
    counts_[block] += static_cast<std::size_t>(std::popcount(words[w]));
  }
  for (std::size_t b = 0; b < counts_.size(); ++b)
    if (counts_[b] != layout.blocks()[b].values.size) return;
  *this = ActiveMask();
}

const std::uint32_t* ActiveMask::words(const BlockLayout& layout,
                                       std::size_t block) const {
  if (everything()) return nullptr;
  if (counts_[block] == layout.blocks()[block].values.size) return nullptr;
  return &words_[first_word_[block]];
}

std::size_t ActiveMask::count(const BlockLayout& layout,
                              std::size_t block) const {
  return everything() ? layout.blocks()[block].residual.size : counts_[block];
}

}  // namespace thinwire::exchange
