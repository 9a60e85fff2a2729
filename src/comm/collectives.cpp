// SPDX-License-Identifier: Apache-2.0
#include "comm/collectives.h"

#include <algorithm>
#include <cstring>

#include "comm/deadline.h"
#include "comm/reduce.h"

namespace thinwire::comm {
namespace {

// Most bytes of other ranks' values held at a time: few enough to be added
// while the cache has them, many enough that latency does not count.
constexpr std::size_t kScratchBytes = std::size_t{4} << 20;

std::byte* at(View view, std::size_t element) {
  return static_cast<std::byte*>(view.data()) + element * size_of(view.dtype());
}

void copy(ConstView from, void* to) {
  if (!from.empty() && from.data() != to)
    std::memcpy(to, from.data(), from.bytes());
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

Collectives::Collectives(Transport& transport,
                         const CommunicatorOptions& options)
    : transport_(transport),
      options_(options),
      rank_(transport.rank()),
      size_(transport.size()) {}

void Collectives::begin(std::string_view name) {
  operation_.name = name;
  operation_.deadline = deadline_after(options_.timeout);
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

// Does what send() and receive() have collected. Ranks that have nothing to
// say count the exchange all the same, so that sequence numbers agree.
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
  if (options_.reduction == Reduction::kNative &&
      transport_.native_all_reduce(data, op, next_operation())) {
    return;
  }
  const std::vector<Range> ranges = equal_ranges(data.size(), size_);
  const Range own = ranges[static_cast<std::size_t>(rank_)];
  reduce_own_range(data, ranges, data.subview(own.offset, own.size), op);
  gather_ranges(data, ranges);
}

void Collectives::reduce_scatter(ConstView input, std::span<const Range> pieces,
                                 View output, ReduceOp op) {
  if (size_ == 1) {
    if (input.dtype() == output.dtype()) return copy(input, output.data());
    const void* const source = input.data();
    return reduce_in_order(op, input.dtype(), {&source, 1}, output);
  }
  if (input.empty()) return;
  begin("reduce_scatter");
  reduce_own_range(input, pieces, output, op);
}

// In blocks that fit the scratch memory, as many on every rank as the longest
// range has: a rank whose own has ended goes on sending.
void Collectives::reduce_own_range(ConstView input,
                                   std::span<const Range> ranges, View output,
                                   ReduceOp op) {
  const std::size_t element = size_of(input.dtype());
  const auto ranks = static_cast<std::size_t>(size_);
  const auto self = static_cast<std::size_t>(rank_);
  std::size_t longest = 0;
  for (const Range& range : ranges) longest = std::max(longest, range.size);
  const std::size_t slot_bytes = std::min(
      kScratchBytes / ranks, longest * element + Buffer::kAlignment - 1);
  const std::size_t stride = std::max(
      slot_bytes / Buffer::kAlignment * Buffer::kAlignment, Buffer::kAlignment);
  const std::size_t block = stride / element;
  if (scratch_.size() < stride * ranks)
    scratch_ = Buffer(stride * ranks, DType::kUInt8);

  std::vector<const void*> sources(ranks);
  for (std::size_t begin = 0; begin < longest; begin += block) {
    const auto part = [&](std::size_t rank) -> Range {
      const std::size_t skip = std::min(begin, ranges[rank].size);
      return {ranges[rank].offset + skip,
              std::min(block, ranges[rank].size - skip)};
    };
    const Range own = part(self);
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      const Range range = part(peer);
      const ConstView values = input.subview(range.offset, range.size);
      sources[peer] = values.data();
      if (peer == self) continue;
      void* slot = scratch_.as<std::byte>().data() + peer * stride;
      sources[peer] = slot;
      send(static_cast<int>(peer), values);
      receive(static_cast<int>(peer), slot, own.size * element);
    }
    exchange();
    if (own.size > 0)
      reduce_in_order(op, input.dtype(), sources,
                      output.subview(begin, own.size));
  }
}

// Every rank's range is in place on that rank, and then on all.
void Collectives::gather_ranges(View data, std::span<const Range> places) {
  const Range own = places[static_cast<std::size_t>(rank_)];
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Range range = places[static_cast<std::size_t>(peer)];
    send(peer, data.subview(own.offset, own.size));
    receive(peer, at(data, range.offset), range.size * size_of(data.dtype()));
  }
  exchange();
}

void Collectives::all_gather(ConstView input, View output,
                             std::span<const Range> places) {
  begin("all_gather");
  copy(input, at(output, places[static_cast<std::size_t>(rank_)].offset));
  gather_ranges(output, places);
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
