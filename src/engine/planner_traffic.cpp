// SPDX-License-Identifier: Apache-2.0
// Bytes and messages of a step, as the collectives send them: means over ranks,
// whose own pieces differ by a block.
#include <algorithm>
#include <cmath>

#include "comm/routes.h"
#include "engine/planner_parts.h"
#include "thinwire/compress/bucket_rule.h"
#include "thinwire/core/buffer.h"
#include "thinwire/engine/planner.h"

namespace thinwire::engine {

namespace {

// The communicator's, which adds other ranks' values in parts of this much.
constexpr auto kScratchBytes = static_cast<double>(comm::kScratchBytes);
constexpr auto kScratchAlignment = static_cast<double>(Buffer::kAlignment);

// What a rank says before a low-bit step: the square of its gradient's norm,
// and flags.
constexpr double kScalarBytes = 16;
constexpr double kNormBytes = 8;  // of a cell

double blocks_in(double elements) {
  return std::ceil(elements / static_cast<double>(kBlock));
}

// Records of `elements` neighbours, the last one shorter.
double record_bytes_of(double elements, int bits) {
  const double full = std::floor(elements / static_cast<double>(kBlock));
  const auto rest =
      static_cast<std::size_t>(elements - full * static_cast<double>(kBlock));
  return full * record_bytes_per_element(bits) * kBlock +
         (rest == 0 ? 0
                    : static_cast<double>(compress::record_bytes(rest, bits)));
}

/// Adds up what one rank sends, its share of all collectives of a group.
class Sum {
 public:
  explicit Sum(const Network& network) : network_(network) {}

  /// All-to-all or all-gather of `bytes`, cut into `pieces` that are not empty.
  void exchange(double bytes, double pieces) {
    const double w = network_.ranks;
    add(bytes * (w - 1) / w, std::min(pieces, w) * (w - 1) / w, 1);
  }
  /// A reduce-scatter of values: pieces of equal size in parts that fit the
  /// scratch memory.
  void reduce(double elements, double element_bytes) {
    const double w = network_.ranks;
    const double least = std::floor(elements / w);
    const double longer = elements - least * w;  // pieces of one element more
    const double longest = (least + (longer > 0 ? 1 : 0)) * element_bytes;
    const double slot = std::min(std::floor(kScratchBytes / w),
                                 longest + kScratchAlignment - 1);
    const double stride =
        std::max(std::floor(slot / kScratchAlignment), 1.0) * kScratchAlignment;
    const double part = std::floor(stride / element_bytes);
    const double parts = (w - longer) * std::ceil(least / part) +
                         longer * std::ceil((least + 1) / part);
    add(elements * element_bytes * (w - 1) / w, parts * (w - 1) / w,
        std::ceil(longest / element_bytes / part));
  }
  /// `bytes` of every rank to all.
  void gather_scalars(double bytes) {
    const double w = network_.ranks;
    const bool is_small = bytes * w <= static_cast<double>(comm::kSmallBytes) &&
                          network_.ranks > comm::kFewRanks;
    const double steps = std::ceil(std::log2(w));
    add(bytes * (w - 1), is_small ? steps : w - 1, is_small ? steps : 1);
  }

  [[nodiscard]] Traffic flat() const {
    Traffic traffic = sum_;
    const double others = network_.ranks - 1;
    if (others > 0)
      traffic.bytes_between_hosts =
          sum_.bytes * (network_.ranks - network_.ranks_per_host) / others;
    return traffic;
  }

 private:
  void add(double bytes, double messages, double rounds) {
    sum_.bytes += bytes;
    sum_.messages += messages;
    sum_.rounds += rounds;
  }

  const Network& network_;
  Traffic sum_;
};

Traffic operator+(const Traffic& a, const Traffic& b) {
  return {a.bytes + b.bytes, a.bytes_between_hosts + b.bytes_between_hosts,
          a.messages + b.messages, a.rounds + b.rounds};
}

Traffic operator*(const Traffic& a, double factor) {
  return {a.bytes * factor, a.bytes_between_hosts * factor, a.messages * factor,
          a.rounds * factor};
}

/// The groups that a way's exchange runs on: by host two, else one.
struct Groups {
  Network inside;  // of one rank where flat
  Network outer;
  Sum within{inside};
  Sum across{outer};

  Groups(bool by_host, const Network& network)
      : inside(inside_of(network)),
        outer(by_host ? between_of(network) : network) {
    if (!by_host) inside.ranks = inside.ranks_per_host = 1;
  }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  [[nodiscard]] double local() const { return inside.ranks; }
  [[nodiscard]] Traffic total() const {
    Traffic all = across.flat();
    if (local() > 1) all = all + within.flat();
    return all;
  }
};

// Calls body(elements) for every bucket.
template <class Body>
void for_buckets(double elements, double bucket, Body&& body) {
  for (double at = 0; at < elements; at += bucket)
    body(std::min(bucket, elements - at));
}

void add_exact(const Workload& work, double bucket, Groups& groups) {
  const auto size = static_cast<double>(size_of(work.dtype));
  for_buckets(work.parameters, bucket, [&](double elements) {
    if (groups.local() > 1) {
      groups.within.reduce(elements, size);
      groups.within.exchange(elements * size, groups.local());
    }
    const double share = elements / groups.local();
    groups.across.reduce(share, groups.local() > 1 ? 4 : size);
    groups.across.exchange(share * size, share);
  });
}

// Momentum, or 0/1 Adam's updates.
void add_low_bit(const Workload& work, double bucket, int bits,
                 bool reduces_inside, Groups& groups) {
  const auto size = static_cast<double>(size_of(work.dtype));
  for_buckets(work.parameters, bucket, [&](double elements) {
    const double share = elements / groups.local();
    const double records = record_bytes_of(elements, bits) / groups.local();
    if (groups.local() > 1) {
      if (reduces_inside) groups.within.reduce(elements, size);
      groups.within.exchange(records * groups.local(), groups.local());
    }
    groups.across.exchange(records, blocks_in(share));
    groups.across.exchange(records, blocks_in(share));
  });
}

void add_averages_inside(const Workload& work, double bucket, Groups& groups) {
  if (groups.local() == 1) return;
  const auto size = static_cast<double>(size_of(work.dtype));
  for_buckets(work.parameters, bucket, [&](double elements) {
    groups.within.reduce(elements, size);
    groups.within.exchange(elements * size, groups.local());
  });
}

Traffic scalars_of(const Network& network, double bytes) {
  Sum sum(network);
  sum.gather_scalars(bytes);
  return sum.flat();
}

}  // namespace

int wire_bits(Way way) noexcept {
  switch (way) {
    case Way::kExact:
      return 32;
    case Way::kZero:
      return 4;
    default:
      return 1;
  }
}

double bucket_elements_of(Way way, bool by_host, const Workload& work,
                          const Network& network) {
  comm::Hosts hosts{.size = network.ranks};
  if (by_host) hosts = {network.hosts(), 0, network.ranks_per_host};
  const auto bucket = static_cast<double>(compress::bucket_elements(
      static_cast<std::size_t>(work.bucket_elements),
      static_cast<std::size_t>(work.parameters), hosts, wire_bits(way)));
  if (way == Way::kExact) return bucket;
  // Whole blocks; none is longer than the model.
  const auto block = static_cast<double>(kBlock);
  return std::min(std::max(std::floor(bucket / block), 1.0) * block,
                  blocks_in(work.parameters) * block);
}

Traffic traffic_of(Way way, bool by_host, const Workload& work,
                   const Network& network) {
  if (network.ranks == 1) return {};
  const double bucket = bucket_elements_of(way, by_host, work, network);
  Groups groups(by_host, network);
  const int bits = wire_bits(way);
  switch (way) {
    case Way::kExact:
      add_exact(work, bucket, groups);
      return groups.total();
    case Way::kZeroOneAdam: {
      add_low_bit(work, bucket, bits, false, groups);
      const Traffic sync = groups.total() + scalars_of(network, kScalarBytes);
      Groups every_step(by_host, network);
      add_averages_inside(work, bucket, every_step);
      const Traffic inside =
          every_step.local() > 1 ? every_step.within.flat() : Traffic{};
      return sync * (1 / work.steps_per_sync) + inside;
    }
    case Way::kZero: {
      add_low_bit(work, bucket, bits, true, groups);
      Sum norms(network);
      norms.exchange(blocks_in(work.parameters) * kNormBytes, network.ranks);
      return groups.total() + norms.flat();
    }
    default:
      add_low_bit(work, bucket, bits, true, groups);
      return groups.total() + scalars_of(network, kScalarBytes);
  }
}

}  // namespace thinwire::engine
