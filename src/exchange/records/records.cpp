// SPDX-License-Identifier: Apache-2.0
#include "exchange/records/records.h"

#include <algorithm>

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

Buffer make_received(const BlockLayout& layout, std::size_t workers,
                     std::size_t server) {
  std::size_t most = 0;
  for (const Bucket& bucket : layout.buckets())
    most = std::max(most, workers * chunk_bytes(layout, bucket, server));
  return Buffer::of<std::uint8_t>(most);
}

comm::Work queue_to_servers(comm::Communicator& workers, View records,
                            std::span<const std::size_t> sizes, std::size_t own,
                            Buffer& received) {
  const std::vector<std::size_t> receive(sizes.size(), sizes[own]);
  return workers.queue_all_to_all(
      records, sizes, received.view().subview(0, sizes.size() * sizes[own]),
      receive);
}

void QuantizedMean::write(std::size_t block, std::span<float> mean) {
  for (std::size_t r = 0; r < sent_.size(); ++r)
    sent_[r] = quantized_in(from_.record(r, block));
  kernels::quantized_average(sent_, bits_, factor_, nullptr, mean.data(),
                             mean.size());
}

}  // namespace thinwire::exchange
