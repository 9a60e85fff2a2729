// SPDX-License-Identifier: Apache-2.0
#include "comm/collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/deadline.h"

namespace thinwire::comm {
namespace {

std::byte* at(View view, std::size_t element) {
  return static_cast<std::byte*>(view.data()) + element * size_of(view.dtype());
}

void copy(ConstView from, void* to) {
  if (!from.empty() && from.data() != to)
    std::memcpy(to, from.data(), from.bytes());
}

}  // namespace

Collectives::Collectives(Transport& transport,
                         const CommunicatorOptions& options,
                         const Routes& routes)
    : transport_(transport),
      options_(options),
      routes_(routes),
      rank_(transport.rank()),
      size_(transport.size()) {}

void Collectives::begin(std::string_view name) {
  operation_.name = name;
  operation_.deadline = deadline_after(options_.timeout);
}

void Collectives::name_ranks(std::vector<int> names) {
  names_ = std::move(names);
  operation_.names = names_;
}

Operation Collectives::next_operation() {
  ++operation_.sequence;
  return operation_;
}

void Collectives::send(int peer, ConstView data) {
  if (!data.empty()) sends_.push_back({peer, data.data(), data.bytes()});
}

void Collectives::receive(int peer, void* data, std::size_t bytes) {
  if (bytes > 0) receives_.push_back({peer, data, bytes});
}

// Performs the sends and receives collected so far. Ranks without sends or
// receives also count the exchange, so that sequence numbers agree.
void Collectives::exchange() {
  const Operation operation = next_operation();
  if (!sends_.empty() || !receives_.empty())
    transport_.exchange(sends_, receives_, operation);
  sends_.clear();
  receives_.clear();
}

void Collectives::all_reduce(View data, ReduceOp op) {
  if (size_ == 1 || data.empty()) return;
  begin("all_reduce");
  const std::size_t sum = size_of(sum_dtype(op, data.dtype()));
  for (const Range& slice : routes_.slices(data.size(), sum)) {
    const std::vector<Range> pieces = routes_.pieces(slice);
    const Range own = pieces[static_cast<std::size_t>(rank_)];
    const Legs legs = routes_.legs(pieces);
    reduce(data, legs, data.subview(own.offset, own.size), op);
    gather(data, legs);
  }
}

void Collectives::reduce_scatter(ConstView input, std::span<const Range> pieces,
                                 View output, ReduceOp op) {
  if (size_ == 1) {
    if (input.dtype() == output.dtype()) return copy(input, output.data());
    const void* const source = input.data();
    return reduce_in_order({op, input.dtype(), 1}, {&source, 1}, output);
  }
  if (input.empty()) return;
  begin("reduce_scatter");
  reduce(input, routes_.legs(pieces), output, op);
}

void Collectives::reduce(ConstView input, const Legs& legs, View output,
                         ReduceOp op) {
  if (legs.inside.empty())
    return reduce_leg(input, legs.across, output, {op, input.dtype(), size_});
  // A mean is computed as a sum until the last rounding.
  const ReduceOp sum_op = op == ReduceOp::kMax ? op : ReduceOp::kSum;
  const DType sum_type = sum_dtype(op, input.dtype());
  const Leg across = packed(legs.across);
  const std::size_t elements = across.ranges.back().end();
  if (sums_.bytes() < elements * size_of(sum_type))
    sums_ = Buffer(elements * size_of(sum_type), DType::kUInt8);
  const View sums(sums_.data(), elements, sum_type);
  std::size_t offset = 0;
  for (const Leg& leg : legs.inside) {
    reduce_leg(input, leg, sums.subview(offset, leg.own().size),
               {sum_op, input.dtype(), size_});
    offset += leg.own().size;
  }
  reduce_leg(sums, across, output, {op, sum_type, size_});
}

// Works in blocks that fit the scratch memory. Every rank runs as many blocks
// as the longest range needs, because it still sends after its own range has
// ended.
void Collectives::reduce_leg(ConstView input, const Leg& leg, View output,
                             const Reducer& reducer) {
  const Peers& peers = *leg.peers;
  const std::size_t element = size_of(input.dtype());
  const Blocks blocks(leg, element);
  const std::size_t ranks = peers.ranks.size();
  if (scratch_.size() < blocks.stride * ranks)
    scratch_ = Buffer(blocks.stride * ranks, DType::kUInt8);

  std::vector<const void*> sources(ranks);
  for (std::size_t begin = 0; begin < leg.longest; begin += blocks.elements) {
    const auto part = [&](std::size_t peer) -> Range {
      const Range whole = leg.ranges[peer];
      const std::size_t skip = std::min(begin, whole.size);
      return {whole.offset + skip,
              std::min(blocks.elements, whole.size - skip)};
    };
    const Range own = part(peers.self);
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      const Range range = part(peer);
      const ConstView values = input.subview(range.offset, range.size);
      sources[peer] = values.data();
      if (peer == peers.self) continue;
      void* slot = scratch_.as<std::byte>().data() + peer * blocks.stride;
      sources[peer] = slot;
      send(peers.ranks[peer], values);
      receive(peers.ranks[peer], slot, own.size * element);
    }
    exchange();
    if (own.size > 0)
      reduce_in_order(reducer, sources, output.subview(begin, own.size));
  }
}

// Distributes the pieces to all ranks. Each piece is already in place on its
// own rank.
void Collectives::gather(View data, const Legs& legs) {
  gather_leg(data, legs.across);
  for (const Leg& leg : legs.inside) gather_leg(data, leg);
}

void Collectives::gather_leg(View data, const Leg& leg) {
  const Range own = leg.own();
  for (std::size_t i = 0; i < leg.ranges.size(); ++i) {
    if (i == leg.peers->self) continue;
    const int peer = leg.peers->ranks[i];
    const Range range = leg.ranges[i];
    send(peer, data.subview(own.offset, own.size));
    receive(peer, at(data, range.offset), range.size * size_of(data.dtype()));
  }
  exchange();
}

void Collectives::all_gather(ConstView input, View output,
                             std::span<const Range> places) {
  begin("all_gather");
  copy(input, at(output, places[static_cast<std::size_t>(rank_)].offset));
  if (routes_.takes_steps(output.bytes()))
    gather_in_steps(output, places);
  else
    gather(output, routes_.gather_legs(places, output.bytes()));
}

// Implements Bruck's algorithm. After k steps a rank has the values of 2^k
// ranks, counted cyclically from itself. The next step sends these values in
// one message.
void Collectives::gather_in_steps(View data, std::span<const Range> places) {
  const std::size_t element = size_of(data.dtype());
  const auto place = [&](int after) {
    return places[static_cast<std::size_t>((rank_ + after) % size_)];
  };
  std::vector<std::size_t> ends{0};  // byte offsets in cyclic order
  for (int i = 0; i < size_; ++i)
    ends.push_back(ends.back() + place(i).size * element);
  if (scratch_.size() < ends.back())
    scratch_ = Buffer(ends.back(), DType::kUInt8);
  std::byte* const values = scratch_.as<std::byte>().data();
  copy(data.subview(place(0).offset, place(0).size), values);
  std::size_t here = 1;
  for (const BruckStep& step : routes_.bruck_steps()) {
    const auto count = static_cast<std::size_t>(step.count);
    send(step.to, ConstView(values, ends[count], DType::kUInt8));
    receive(step.from, values + ends[here], ends[here + count] - ends[here]);
    exchange();
    here += count;
  }
  for (int i = 1; i < size_; ++i) {
    const std::size_t begin = ends[static_cast<std::size_t>(i)];
    copy(ConstView(values + begin, place(i).size * element, DType::kUInt8),
         at(data, place(i).offset));
  }
}

void Collectives::all_to_all(ConstView input, std::span<const Range> sent,
                             View output, std::span<const Range> received) {
  begin("all_to_all");
  for (int peer = 0; peer < size_; ++peer) {
    const Range from = sent[static_cast<std::size_t>(peer)];
    const Range to = received[static_cast<std::size_t>(peer)];
    const ConstView values = input.subview(from.offset, from.size);
    if (peer == rank_) {
      copy(values, at(output, to.offset));
      continue;
    }
    send(peer, values);
    receive(peer, at(output, to.offset), to.size * size_of(output.dtype()));
  }
  exchange();
}

void Collectives::broadcast(View data, int root) {
  begin("broadcast");
  if (rank_ == root) {
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_) send(peer, data);
  } else {
    receive(root, data.data(), data.bytes());
  }
  exchange();
}

void Collectives::barrier() {
  begin("barrier");
  const std::uint8_t here = 1;
  std::vector<std::uint8_t> others(static_cast<std::size_t>(size_));
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    send(peer, ConstView(&here, 1, DType::kUInt8));
    receive(peer, &others[static_cast<std::size_t>(peer)], 1);
  }
  exchange();
}

std::unique_ptr<Transport> Collectives::split(int color, int key) {
  begin("split");
  return transport_.split(color, key, next_operation());
}

}  // namespace thinwire::comm
