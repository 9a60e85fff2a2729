// SPDX-License-Identifier: Apache-2.0
#include "zero/wire/host_means.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/wait_ignoring_errors.h"
#include "thinwire/core/memory.h"

namespace thinwire::zero {

HostMeans::HostMeans(comm::Communicator& inside, const ShardLayout& shards,
                     const comm::Hosts& hosts, bool average)
    : inside_(inside),
      shards_(shards),
      hosts_(hosts),
      op_(average ? comm::ReduceOp::kMean : comm::ReduceOp::kSum) {
  std::size_t most = 0;
  for (std::size_t b = 0; b < shards.buckets().size(); ++b)
    most = std::max(most, own_part(b).size);
  const MemoryScope scope(MemoryKind::kBuckets);
  for (Slot& slot : slots_) slot.means = Buffer::of<float>(most);
}

Range HostMeans::part(std::size_t b, int local_rank) const {
  const auto owners = shards_.owners().subspan(
      static_cast<std::size_t>(local_rank * hosts_.size),
      static_cast<std::size_t>(hosts_.size));
  const auto& pieces = shards_.buckets()[b].pieces;
  const Range& first = pieces[static_cast<std::size_t>(owners.front())];
  const Range& last = pieces[static_cast<std::size_t>(owners.back())];
  return {first.offset, last.end() - first.offset};
}

void HostMeans::queue(std::size_t b, ConstView values, Buffer&& kept) {
  Slot& slot = slots_[(first_ + count_++) % kSlots];
  slot.bucket = b;
  slot.kept = std::move(kept);
  std::vector<std::size_t> counts;
  for (int l = 0; l < hosts_.ranks_per_host; ++l)
    counts.push_back(part(b, l).size);
  slot.work = inside_.queue_reduce_scatter(
      values, slot.means.view().subview(0, own_part(b).size), counts, op_);
}

HostMeans::Mean HostMeans::wait() {
  Slot& slot = slots_[first_];
  slot.work.wait();
  first_ = (first_ + 1) % kSlots;
  --count_;
  return {
      slot.bucket,
      std::as_const(slot.means).view().subview(0, own_part(slot.bucket).size),
      std::move(slot.kept)};
}

void HostMeans::abandon() noexcept {
  for (; count_ > 0; --count_) {
    comm::wait_ignoring_errors(slots_[first_].work);
    first_ = (first_ + 1) % kSlots;
  }
}

}  // namespace thinwire::zero
