// SPDX-License-Identifier: Apache-2.0
#include "zero/wire/record_route.h"

#include <algorithm>
#include <vector>

namespace thinwire::zero {

using comm::Work;
using exchange::BlockLayout;
using exchange::Bucket;
using exchange::chunk_bytes;

RecordRoute::RecordRoute(comm::Communicator& comm, const BlockLayout& layout,
                         std::span<const int> owners)
    : comm_(comm),
      layout_(layout),
      owners_(owners.begin(), owners.end()),
      own_(static_cast<std::size_t>(
          std::find(owners.begin(), owners.end(), comm.rank()) -
          owners.begin())) {}

Range RecordRoute::owned_of(const Bucket& bucket) const {
  const std::size_t first = bucket.server_begin[own_];
  return {first, bucket.server_begin[own_ + 1] - first};
}

Buffer RecordRoute::make_records() const {
  std::size_t most = 0;
  for (const Bucket& bucket : layout_.buckets())
    most = std::max(most, layout_.record_begin(bucket.end_block()) -
                              layout_.record_begin(bucket.first_block()));
  return Buffer::of<std::uint8_t>(most);
}

Buffer RecordRoute::make_received() const {
  return exchange::make_received(layout_,
                                 static_cast<std::size_t>(comm_.size()), own_);
}

std::uint8_t* RecordRoute::record(Buffer& records, const Bucket& bucket,
                                  std::size_t block) const {
  return records.as<std::uint8_t>().data() + layout_.record_begin(block) -
         layout_.record_begin(bucket.first_block());
}

View RecordRoute::all_of(const Bucket& bucket, Buffer& records) const {
  return records.view().subview(0,
                                layout_.record_begin(bucket.end_block()) -
                                    layout_.record_begin(bucket.first_block()));
}

Work RecordRoute::queue_to_owners(const Bucket& bucket, Buffer& records,
                                  Buffer& received) const {
  return exchange::queue_to_servers(
      comm_, all_of(bucket, records),
      exchange::chunk_sizes(layout_, bucket, 0,
                            static_cast<std::size_t>(layout_.world_size())),
      own_, received);
}

Work RecordRoute::queue_from_owners(const Bucket& bucket,
                                    Buffer& records) const {
  const std::size_t begin = layout_.record_begin(bucket.first_block());
  std::vector<Range> pieces(owners_.size());
  for (std::size_t s = 0; s < owners_.size(); ++s)
    pieces[static_cast<std::size_t>(owners_[s])] = {
        layout_.record_begin(bucket.server_begin[s]) - begin,
        chunk_bytes(layout_, bucket, s)};
  const View all = all_of(bucket, records);
  const Range& own = pieces[static_cast<std::size_t>(comm_.rank())];
  return comm_.queue_all_gather(all.subview(own.offset, own.size), all, pieces);
}

}  // namespace thinwire::zero
