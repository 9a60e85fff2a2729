// SPDX-License-Identifier: Apache-2.0
#include "exchange/records.h"

namespace thinwire::exchange {

View Records::chunks(const Bucket& bucket, std::size_t begin, std::size_t end) {
  const std::size_t first = layout_->record_begin(bucket.server_begin[begin]);
  return bytes_.view().subview(
      first, layout_->record_begin(bucket.server_begin[end]) - first);
}

std::size_t chunk_bytes(const BlockLayout& layout, const Bucket& bucket,
                        std::size_t server) {
  return layout.record_begin(bucket.server_begin[server + 1]) -
         layout.record_begin(bucket.server_begin[server]);
}

std::vector<std::size_t> chunk_sizes(const BlockLayout& layout,
                                     const Bucket& bucket, std::size_t begin,
                                     std::size_t end) {
  std::vector<std::size_t> sizes;
  for (std::size_t server = begin; server < end; ++server)
    sizes.push_back(chunk_bytes(layout, bucket, server));
  return sizes;
}

}  // namespace thinwire::exchange
