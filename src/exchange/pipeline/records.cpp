// SPDX-License-Identifier: Apache-2.0
#include "exchange/pipeline/records.h"

namespace thinwire::exchange {

RecordMap::RecordMap(const BlockLayout& layout, const Codec& codec)
    : layout_(&layout), begin_{0} {
  for (const Block& block : layout.blocks())
    begin_.push_back(begin_.back() + codec.record_bytes(block.values.size));
}

std::vector<std::size_t> RecordMap::chunk_sizes(const Bucket& bucket,
                                                std::size_t first,
                                                std::size_t end) const {
  std::vector<std::size_t> sizes;
  for (std::size_t server = first; server < end; ++server)
    sizes.push_back(chunks(bucket, server, server + 1).size);
  return sizes;
}

}  // namespace thinwire::exchange
