// SPDX-License-Identifier: Apache-2.0
#include "comm/routes.h"

#include <algorithm>
#include <numeric>

#include "thinwire/comm/hosts.h"
#include "thinwire/core/buffer.h"

namespace thinwire::comm {
namespace {

std::size_t longest_of(std::span<const Range> ranges) {
  std::size_t longest = 0;
  for (const Range& range : ranges) longest = std::max(longest, range.size);
  return longest;
}

// One range of neighbours, of which empty ones may lie anywhere.
Range joined(std::span<const Range> ranges) {
  Range whole = ranges.front();
  for (const Range& range : ranges) {
    if (range.size == 0) continue;
    if (whole.size == 0) whole.offset = range.offset;
    whole.size = range.end() - whole.offset;
  }
  return whole;
}

}  // namespace

std::vector<Range> equal_ranges(std::size_t size, int parts) {
  const auto count = static_cast<std::size_t>(parts);
  std::vector<Range> ranges(count);
  std::size_t offset = 0;
  for (std::size_t part = 0; part < count; ++part) {
    ranges[part] = {offset, size / count + (part < size % count ? 1 : 0)};
    offset = ranges[part].end();
  }
  return ranges;
}

std::vector<Range> ranges_of(std::span<const std::size_t> sizes) {
  std::vector<Range> ranges;
  ranges.reserve(sizes.size());
  std::size_t offset = 0;
  for (const std::size_t size : sizes) {
    ranges.push_back({offset, size});
    offset += size;
  }
  return ranges;
}

Traffic& Traffic::operator+=(const Traffic& more) {
  bytes += more.bytes;
  bytes_between_hosts += more.bytes_between_hosts;
  messages += more.messages;
  return *this;
}

Leg packed(Leg leg) {
  std::size_t offset = 0;
  for (Range& range : leg.ranges) {
    range.offset = offset;
    offset = range.end();
  }
  return leg;
}

Blocks::Blocks(const Leg& leg, std::size_t element_bytes) {
  const std::size_t slot_bytes =
      std::min(kScratchBytes / leg.ranges.size(),
               leg.longest * element_bytes + Buffer::kAlignment - 1);
  stride = std::max(slot_bytes / Buffer::kAlignment * Buffer::kAlignment,
                    Buffer::kAlignment);
  elements = stride / element_bytes;
}

Routes::Routes(int rank, int size, const Hosts& hosts)
    : hosts_(hosts),
      rank_(rank),
      size_(size),
      by_host_(!hosts.is_flat() && hosts.size > 1),
      host_of_(static_cast<std::size_t>(size)) {
  everyone_ = {std::vector<int>(host_of_.size()),
               static_cast<std::size_t>(rank)};
  std::iota(everyone_.ranks.begin(), everyone_.ranks.end(), 0);
  std::iota(host_of_.begin(), host_of_.end(), 0);
  if (hosts_.is_flat()) return;
  for (int host = 0; host < hosts_.size; ++host) {
    for (int local = 0; local < hosts_.ranks_per_host; ++local) {
      const std::size_t member = rank_at(host, local);
      host_of_[member] = host;
      if (host == hosts_.index)
        inside_.ranks.push_back(static_cast<int>(member));
      if (local == hosts_.local_rank)
        between_.ranks.push_back(static_cast<int>(member));
    }
  }
  inside_.self = static_cast<std::size_t>(hosts_.local_rank);
  between_.self = static_cast<std::size_t>(hosts_.index);
}

std::size_t Routes::rank_at(int host, int local_rank) const {
  return static_cast<std::size_t>(hosts_.ranks[static_cast<std::size_t>(
      host * hosts_.ranks_per_host + local_rank)]);
}

// ---- legs

Legs Routes::legs(std::span<const Range> pieces) const {
  if (by_host_) return {inside(pieces), between(pieces)};
  return flat(pieces);
}

Legs Routes::gather_legs(std::span<const Range> places,
                         std::size_t bytes) const {
  return bytes <= kSmallBytes ? flat(places) : legs(places);
}

Legs Routes::flat(std::span<const Range> pieces) const {
  return {{}, {&everyone_, {pieces.begin(), pieces.end()}, longest_of(pieces)}};
}

bool Routes::is_adjacent(std::span<const Range> pieces) const {
  for (int local = 0; local < hosts_.ranks_per_host; ++local) {
    Range before;
    for (int host = 0; host < hosts_.size; ++host) {
      const Range& piece = pieces[rank_at(host, local)];
      if (piece.size == 0) continue;
      if (before.size != 0 && before.end() != piece.offset) return false;
      before = piece;
    }
  }
  return true;
}

std::vector<Leg> Routes::inside(std::span<const Range> pieces) const {
  const bool adjacent = is_adjacent(pieces);
  std::vector<Leg> legs(adjacent ? std::size_t{1}
                                 : static_cast<std::size_t>(hosts_.size));
  for (Leg& leg : legs) leg.peers = &inside_;
  for (int local = 0; local < hosts_.ranks_per_host; ++local) {
    std::vector<Range> of_hosts;
    for (int host = 0; host < hosts_.size; ++host)
      of_hosts.push_back(pieces[rank_at(host, local)]);
    if (adjacent) of_hosts = {joined(of_hosts)};
    for (std::size_t i = 0; i < legs.size(); ++i)
      legs[i].ranges.push_back(of_hosts[i]);
  }
  for (Leg& leg : legs) leg.longest = longest_of(leg.ranges);
  return legs;
}

Leg Routes::between(std::span<const Range> pieces) const {
  Leg leg{&between_, {}, longest_of(pieces)};
  for (const int peer : between_.ranks)
    leg.ranges.push_back(pieces[static_cast<std::size_t>(peer)]);
  return leg;
}

std::vector<Range> Routes::slices(std::size_t size,
                                  std::size_t sum_bytes) const {
  if (!by_host_) return {{0, size}};
  const std::size_t most = kScratchBytes / sum_bytes *
                           static_cast<std::size_t>(hosts_.ranks_per_host);
  std::vector<Range> ranges;
  for (std::size_t at = 0; at < size; at += most)
    ranges.push_back({at, std::min(most, size - at)});
  return ranges;
}

std::vector<Range> Routes::pieces(Range slice) const {
  std::vector<Range> places = equal_ranges(slice.size, size_);
  for (Range& place : places) place.offset += slice.offset;
  if (!by_host_) return places;
  const std::vector<int> ranks = ranks_by_place(hosts_);
  std::vector<Range> result(places.size());
  for (std::size_t place = 0; place < places.size(); ++place)
    result[static_cast<std::size_t>(ranks[place])] = places[place];
  return result;
}

bool Routes::takes_steps(std::size_t bytes) const noexcept {
  return size_ > kFewRanks && bytes <= kSmallBytes;
}

std::vector<BruckStep> Routes::bruck_steps() const {
  std::vector<BruckStep> steps;
  for (int reach = 1; reach < size_; reach *= 2)
    steps.push_back({(rank_ - reach + size_) % size_, (rank_ + reach) % size_,
                     std::min(reach, size_ - reach)});
  return steps;
}

// ---- what they cost

Traffic Routes::message(int peer, std::size_t bytes) const {
  if (bytes == 0) return {};
  const bool leaves = host_of_[static_cast<std::size_t>(peer)] !=
                      host_of_[static_cast<std::size_t>(rank_)];
  return {bytes, leaves ? bytes : 0, 1};
}

Traffic Routes::of_reduction(const Leg& leg, std::size_t element) const {
  const std::size_t block = Blocks(leg, element).elements;
  Traffic all;
  for (std::size_t i = 0; i < leg.ranges.size(); ++i) {
    if (i == leg.peers->self) continue;
    const std::size_t elements = leg.ranges[i].size;
    Traffic sent = message(leg.peers->ranks[i], elements * element);
    sent.messages = (elements + block - 1) / block;
    all += sent;
  }
  return all;
}

Traffic Routes::of_gather(const Leg& leg, std::size_t element) const {
  Traffic all;
  for (std::size_t i = 0; i < leg.ranges.size(); ++i)
    if (i != leg.peers->self)
      all += message(leg.peers->ranks[i], leg.own().size * element);
  return all;
}

Traffic Routes::of_reduction(const Legs& parts, std::size_t element,
                             std::size_t sum) const {
  Traffic all =
      of_reduction(parts.across, parts.inside.empty() ? element : sum);
  for (const Leg& leg : parts.inside) all += of_reduction(leg, element);
  return all;
}

Traffic Routes::of_gather(const Legs& parts, std::size_t element) const {
  Traffic all = of_gather(parts.across, element);
  for (const Leg& leg : parts.inside) all += of_gather(leg, element);
  return all;
}

Traffic Routes::of_all_gather(std::span<const Range> places,
                              std::size_t element) const {
  std::size_t total = 0;
  for (const Range& place : places) total += place.size;
  if (!takes_steps(total * element))
    return of_gather(gather_legs(places, total * element), element);
  Traffic all;
  for (const BruckStep& step : bruck_steps()) {
    std::size_t sent = 0;
    for (int i = 0; i < step.count; ++i)
      sent += places[static_cast<std::size_t>((rank_ + i) % size_)].size;
    all += message(step.to, sent * element);
  }
  return all;
}

}  // namespace thinwire::comm
