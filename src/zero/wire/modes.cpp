// SPDX-License-Identifier: Apache-2.0
#include "zero/wire/modes.h"

#include <algorithm>
#include <utility>

#include "comm/wait_ignoring_errors.h"
#include "thinwire/core/memory.h"
#include "zero/wire/blocks.h"

namespace thinwire::zero {

namespace {

// Returns the ranks of this place on all hosts.
std::span<const int> owners_of(const ReductionSettings& settings,
                               int local_rank) {
  const auto hosts = static_cast<std::size_t>(settings.comm.hosts().size);
  return settings.shards.owners().subspan(
      static_cast<std::size_t>(local_rank) * hosts, hosts);
}

}  // namespace

HierarchicalGradients::HierarchicalGradients(const ReductionSettings& settings,
                                             comm::HostGroups groups)
    : EncodedGradients(settings, *groups.between,
                       owners_of(settings, settings.comm.hosts().local_rank)),
      groups_(std::move(groups)) {
  std::size_t most = 0;
  for (const Range& part : parts()) most = std::max(most, part.size);
  const MemoryScope scope(MemoryKind::kBuckets);
  for (Slot& slot : slots_) slot.mean = Buffer::of<float>(most);
}

void HierarchicalGradients::begin(exchange::Backward which, DType gradients) {
  while (count_ > 0) take_oldest();  // of the previous backward
  EncodedGradients::begin(which, gradients);
}

void HierarchicalGradients::form_mean(std::size_t b, ConstView values,
                                      Buffer&& memory) {
  if (count_ == kSlots) take_oldest();
  Slot& slot = slots_[(first_ + count_++) % kSlots];
  slot.bucket = b;
  slot.memory = std::move(memory);
  std::vector<std::size_t> counts;
  for (int l = 0; l < settings().comm.hosts().ranks_per_host; ++l)
    counts.push_back(part_of(bucket(b), owners_of(settings(), l)).size);
  slot.work = groups_.inside->queue_reduce_scatter(
      values, slot.mean.view().subview(0, parts()[b].size), counts,
      settings().options.average ? comm::ReduceOp::kMean
                                 : comm::ReduceOp::kSum);
  if (!settings().options.overlap) take_oldest();
}

void HierarchicalGradients::take_oldest() {
  Slot& slot = slots_[first_ % kSlots];
  slot.work.wait();
  ++first_;
  --count_;
  give_back(std::move(slot.memory));
  const Range part = parts()[slot.bucket];
  const ConstView mean = slot.mean.view().subview(0, part.size);
  if (is_last())
    encode_and_send(slot.bucket, mean);
  else
    add(slot.bucket, part, mean);
}

void HierarchicalGradients::finish() {
  while (count_ > 0) take_oldest();
  EncodedGradients::finish();
}

void HierarchicalGradients::abandon() noexcept {
  for (; count_ > 0; --count_)
    comm::wait_ignoring_errors(slots_[first_++ % kSlots].work);
  EncodedGradients::abandon();
}

}  // namespace thinwire::zero
