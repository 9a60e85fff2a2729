// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/active_mask.h"

namespace thinwire::compress {

namespace {
// Where a block's words begin: they lie as in its record, after the scale.
std::size_t first_word(const Block& block) { return block.record / 4 + 1; }
}  // namespace

ActiveMask::ActiveMask(const BlockLayout& layout,
                       const std::function<bool(std::size_t)>& is_active) {
  words_.assign(layout.records_size() / 4, 0);
  counts_.assign(layout.blocks().size(), 0);
  bool everything = true;
  for (std::size_t b = 0; b < counts_.size(); ++b) {
    const Block& block = layout.blocks()[b];
    for (std::size_t i = 0; i < block.values.size; ++i) {
      if (!is_active(block.values.offset + i)) continue;
      words_[first_word(block) + i / 32] |= std::uint32_t{1} << (i % 32);
      ++counts_[b];
    }
    everything = everything && counts_[b] == block.values.size;
  }
  if (everything) *this = ActiveMask();
}

const std::uint32_t* ActiveMask::words(const BlockLayout& layout,
                                       std::size_t block) const {
  if (everything()) return nullptr;
  const Block& b = layout.blocks()[block];
  if (counts_[block] == b.values.size) return nullptr;
  return &words_[first_word(b)];
}

std::size_t ActiveMask::count(const BlockLayout& layout,
                              std::size_t block) const {
  return everything() ? layout.blocks()[block].residual.size : counts_[block];
}

}  // namespace thinwire::compress
