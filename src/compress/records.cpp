// SPDX-License-Identifier: Apache-2.0
#include "compress/records.h"

namespace thinwire::compress {

View Records::of(const Bucket& bucket) {
  const std::size_t begin = layout_->record_begin(bucket.first_block());
  return bytes_.view().subview(
      begin, layout_->record_begin(bucket.end_block()) - begin);
}

View Records::chunk(const Bucket& bucket, std::size_t server) {
  return bytes_.view().subview(
      layout_->record_begin(bucket.server_begin[server]),
      chunk_bytes(*layout_, bucket, server));
}

std::size_t chunk_bytes(const BlockLayout& layout, const Bucket& bucket,
                        std::size_t server) {
  return layout.record_begin(bucket.server_begin[server + 1]) -
         layout.record_begin(bucket.server_begin[server]);
}

std::vector<std::size_t> chunk_sizes(const BlockLayout& layout,
                                     const Bucket& bucket) {
  std::vector<std::size_t> sizes(bucket.server_begin.size() - 1);
  for (std::size_t r = 0; r < sizes.size(); ++r)
    sizes[r] = chunk_bytes(layout, bucket, r);
  return sizes;
}

}  // namespace thinwire::compress
