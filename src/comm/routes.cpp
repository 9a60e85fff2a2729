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

int rank_of(const Hosts& hosts) {
  if (hosts.is_flat()) return hosts.index;
  return hosts.ranks[static_cast<std::size_t>(
      hosts.index * hosts.ranks_per_host + hosts.local_rank)];
}

// Returns one host with `ranks` ranks.
Hosts one_host(int ranks) {
  Hosts host{.ranks_per_host = ranks, .ranks = {}};
  if (ranks > 1) host.ranks.resize(static_cast<std::size_t>(ranks));
  std::iota(host.ranks.begin(), host.ranks.end(), 0);
  return host;
}

// Joins ranges that are neighbours; empty ranges may lie anywhere.
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

std::vector<Range> by_rank(std::span<const Range> places,
                           std::span<const int> rank_at_place) {
  std::vector<Range> pieces(places.size());
  for (std::size_t p = 0; p < places.size(); ++p)
    pieces[static_cast<std::size_t>(rank_at_place[p])] = places[p];
  return pieces;
}

void Cost::add(const Cost& more, std::uint64_t times) noexcept {
  for (const auto part : {&Cost::between_hosts, &Cost::inside_hosts}) {
    (this->*part).bytes += (more.*part).bytes * times;
    (this->*part).messages += (more.*part).messages * times;
  }
  rounds += more.rounds * times;
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

Routes::Routes(int rank, int size, const Hosts& hosts, bool by_host)
    : hosts_(hosts),
      rank_(rank),
      size_(size),
      by_host_(by_host && !hosts.is_flat() && hosts.size > 1),
      host_of_(static_cast<std::size_t>(size)) {
  everyone_.ranks.resize(host_of_.size());
  std::iota(everyone_.ranks.begin(), everyone_.ranks.end(), 0);
  std::iota(host_of_.begin(), host_of_.end(), 0);
  for (int host = 0; !hosts.is_flat() && host < hosts.size; ++host)
    for (int local = 0; local < hosts.ranks_per_host; ++local)
      host_of_[rank_at(host, local)] = host;
  become(rank, hosts.index, hosts.local_rank);
}

void Routes::become(int rank, int host, int local_rank) {
  rank_ = rank;
  everyone_.self = static_cast<std::size_t>(rank);
  if (!by_host_) return;
  inside_ = {{}, static_cast<std::size_t>(local_rank)};
  for (int local = 0; local < hosts_.ranks_per_host; ++local)
    inside_.ranks.push_back(static_cast<int>(rank_at(host, local)));
  between_ = {{}, static_cast<std::size_t>(host)};
  for (int each = 0; each < hosts_.size; ++each)
    between_.ranks.push_back(static_cast<int>(rank_at(each, local_rank)));
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
  return by_host_ ? by_rank(places, ranks_by_place(hosts_)) : places;
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

// ---- costs, for the communicator's counters, pipelines and the planner

Cost Routes::message(int peer, std::size_t bytes) const {
  Cost cost;
  if (bytes == 0) return cost;
  const bool leaves = host_of_[static_cast<std::size_t>(peer)] !=
                      host_of_[static_cast<std::size_t>(rank_)];
  (leaves ? cost.between_hosts : cost.inside_hosts) = {bytes, 1};
  return cost;
}

Cost Routes::of_reduction(const Leg& leg, std::size_t element) const {
  Cost all;
  if (leg.peers->ranks.size() == 1) return all;
  const std::size_t block = Blocks(leg, element).elements;
  const auto parts = [&](std::size_t elements) {
    return (elements + block - 1) / block;
  };
  for (std::size_t i = 0; i < leg.ranges.size(); ++i) {
    if (i == leg.peers->self) continue;
    Cost sent = message(leg.peers->ranks[i], leg.ranges[i].size * element);
    for (Sent* const part : {&sent.between_hosts, &sent.inside_hosts})
      part->messages *= parts(leg.ranges[i].size);
    all += sent;
  }
  all.rounds = parts(leg.longest);
  return all;
}

Cost Routes::of_gather(const Leg& leg, std::size_t element) const {
  Cost all;
  if (leg.peers->ranks.size() == 1) return all;
  for (std::size_t i = 0; i < leg.ranges.size(); ++i)
    if (i != leg.peers->self)
      all += message(leg.peers->ranks[i], leg.own().size * element);
  all.rounds = leg.longest > 0 ? 1 : 0;
  return all;
}

Cost Routes::of_reduction(const Legs& parts, std::size_t element,
                          std::size_t sum) const {
  Cost all = of_reduction(parts.across, parts.inside.empty() ? element : sum);
  for (const Leg& leg : parts.inside) all += of_reduction(leg, element);
  return all;
}

Cost Routes::of_reduce_scatter(std::span<const Range> pieces,
                               std::size_t element, std::size_t sum) const {
  return of_reduction(legs(pieces), element, sum);
}

Cost Routes::of_all_reduce(std::size_t size, std::size_t element,
                           std::size_t sum) const {
  Cost all;
  for (const Range& slice : slices(size, sum)) {
    const Legs parts = legs(pieces(slice));
    all += of_reduction(parts, element, sum);
    all += of_gather(parts, element);
  }
  return all;
}

Cost Routes::of_gather(const Legs& parts, std::size_t element) const {
  Cost all = of_gather(parts.across, element);
  for (const Leg& leg : parts.inside) all += of_gather(leg, element);
  return all;
}

Cost Routes::of_all_gather(std::span<const Range> places,
                           std::size_t element) const {
  std::size_t total = 0;
  for (const Range& place : places) total += place.size;
  if (!takes_steps(total * element))
    return of_gather(gather_legs(places, total * element), element);
  Cost all;
  for (const BruckStep& step : bruck_steps()) {
    std::size_t sent = 0;
    for (int i = 0; i < step.count; ++i)
      sent += places[static_cast<std::size_t>((rank_ + i) % size_)].size;
    all += message(step.to, sent * element);
    if (total > 0) ++all.rounds;
  }
  return all;
}

Cost Routes::of_all_to_all(std::span<const Range> sent,
                           std::size_t element) const {
  Cost all;
  for (int peer = 0; peer < size_; ++peer) {
    const std::size_t size = sent[static_cast<std::size_t>(peer)].size;
    if (peer != rank_) all += message(peer, size * element);
    if (size > 0 && size_ > 1) all.rounds = 1;
  }
  return all;
}

// ---- RankRoutes

RankRoutes::RankRoutes(const Hosts& hosts, bool by_host)
    : RankRoutes(hosts, by_host && !hosts.is_flat(), rank_of(hosts),
                 hosts.size * hosts.ranks_per_host) {}

RankRoutes::RankRoutes(const Hosts& hosts, bool by_host, int rank, int size)
    : rank_at_place(ranks_by_place(by_host ? hosts : Hosts{.size = size})),
      place(static_cast<std::size_t>(std::ranges::find(rank_at_place, rank) -
                                     rank_at_place.begin())),
      workers(static_cast<std::size_t>(by_host ? hosts.size : size)),
      whole(rank, size, hosts, by_host),
      between(by_host ? hosts.index : rank, by_host ? hosts.size : size,
              by_host ? Hosts{.size = hosts.size} : hosts, false),
      inside(by_host ? hosts.local_rank : 0, by_host ? hosts.ranks_per_host : 1,
             one_host(by_host ? hosts.ranks_per_host : 1)) {}

void RankRoutes::become(std::size_t other) {
  place = other;
  const int rank = rank_at_place[place];
  const auto host = static_cast<int>(place % workers);
  const auto local = static_cast<int>(place / workers);
  whole.become(rank, host, local);
  between.become(host, host, 0);
  inside.become(local, 0, local);
}

}  // namespace thinwire::comm
