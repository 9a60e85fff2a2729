// SPDX-License-Identifier: Apache-2.0
#include "compress/records.h"

#include <cstring>

namespace thinwire::compress {

using kernels::Signs;

Records::Records(const BlockLayout& layout)
    : layout_(&layout),
      bytes_(Buffer::of<std::uint8_t>(layout.records_size())) {}

Signs Records::read(const std::uint8_t* record) {
  Signs signs;
  std::memcpy(&signs.scale, record, sizeof signs.scale);
  signs.words = reinterpret_cast<const std::uint32_t*>(record + 4);
  return signs;
}

Signs Records::at(std::size_t block) const {
  return read(bytes_.as<std::uint8_t>().data() +
              layout_->blocks()[block].record);
}

std::uint32_t* Records::write(std::size_t block, float scale) {
  std::uint8_t* record =
      bytes_.as<std::uint8_t>().data() + layout_->blocks()[block].record;
  std::memcpy(record, &scale, sizeof scale);
  return reinterpret_cast<std::uint32_t*>(record + 4);
}

View Records::of(const Bucket& bucket) {
  const std::size_t begin = layout_->record_begin(bucket.first_block());
  return bytes_.view().subview(
      begin, layout_->record_begin(bucket.end_block()) - begin);
}

View Records::chunk(const Bucket& bucket, std::size_t server) {
  return bytes_.view().subview(
      layout_->record_begin(bucket.server_begin[server]),
      chunk_bytes(bucket, server));
}

std::size_t Records::chunk_bytes(const Bucket& bucket,
                                 std::size_t server) const {
  return layout_->record_begin(bucket.server_begin[server + 1]) -
         layout_->record_begin(bucket.server_begin[server]);
}

std::vector<std::size_t> Records::chunk_sizes(const Bucket& bucket) const {
  std::vector<std::size_t> sizes(bucket.server_begin.size() - 1);
  for (std::size_t r = 0; r < sizes.size(); ++r)
    sizes[r] = chunk_bytes(bucket, r);
  return sizes;
}

}  // namespace thinwire::compress
