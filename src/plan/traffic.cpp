// SPDX-License-Identifier: Apache-2.0
// Bytes and messages of a step, as the optimizers' pipelines and collectives
// send them.
#include <algorithm>
#include <cmath>

#include "exchange/pipeline/pipeline.h"
#include "plan/collectives.h"
#include "plan/parts.h"
#include "plan/zero_buckets.h"
#include "thinwire/exchange/bucket_rule.h"
#include "thinwire/plan/planner.h"
#include "thinwire/zero/wire_options.h"
#include "zero/cut_on_grid.h"

namespace thinwire::plan {

namespace {

using comm::RankRoutes;
using exchange::Direction;
using Sizes = std::vector<std::size_t>;

constexpr std::size_t kSumBytes = sizeof(float);  // sums of hosts

// A kind of bucket and the number of such buckets.
struct Bucket {
  std::size_t elements = 0;
  std::size_t count = 0;
  std::size_t before = 0;  // buckets before these
};

// Calls body(bucket, traffic) for each bucket of a model and adds the result.
template <class Body>
void for_buckets(std::size_t elements, std::size_t most, MeanTraffic& all,
                 Body&& body) {
  const std::size_t full = elements / most;
  for (const Bucket& bucket :
       {Bucket{most, full, 0}, Bucket{elements % most, 1, full}}) {
    if (bucket.count == 0 || bucket.elements == 0) continue;
    MeanTraffic traffic = all.anew();
    body(bucket, traffic);
    all.add(traffic, static_cast<double>(bucket.count));
  }
}

// Divides a bucket among owners as zero::ShardLayout does. For full buckets,
// describes the first one.
Sizes cell_pieces(const Bucket& bucket, std::size_t most, std::size_t ranks) {
  std::size_t turn = bucket.before * kernels::sum_chunks(most) % ranks;
  Sizes pieces;
  for (const Range& piece :
       zero::cut_on_grid({0, bucket.elements}, ranks, turn))
    pieces.push_back(piece.size);
  return pieces;
}

std::size_t element_bytes(const Workload& work) { return size_of(work.dtype); }

std::size_t elements_of(const Workload& work) {
  return static_cast<std::size_t>(work.parameters);
}

// ---- traffic of a bucket by way

// Adds an all-reduce. In hierarchical mode it runs in slices whose sums fit the
// communicator's memory.
void add_average(std::size_t elements, std::size_t bytes, MeanTraffic& all) {
  const std::size_t most =
      all.by_host() ? comm::kScratchBytes / kSumBytes * all.local() : elements;
  for_buckets(elements, most, all, [&](const Bucket& slice, MeanTraffic& one) {
    one.add(one.by_rank(one.equal_pieces(slice.elements)),
            [&](const RankRoutes& rank) {
              return rank.whole.of_all_reduce(slice.elements, bytes, kSumBytes);
            });
  });
}

// Adds an all-reduce inside the hosts.
void add_average_inside(std::size_t elements, std::size_t bytes,
                        MeanTraffic& all) {
  const auto of_host =
      comm::equal_ranges(elements, static_cast<int>(all.local()));
  std::vector<Range> pieces;
  while (pieces.size() < all.ranks())
    pieces.push_back(of_host[pieces.size() % all.local()]);
  all.add(pieces, [&](const RankRoutes& rank) {
    return rank.inside.of_all_reduce(elements, bytes, kSumBytes);
  });
}

// Adds a reduction inside a host, in which each local rank gets all pieces of
// its group.
void reduce_inside(const Sizes& pieces, std::size_t bytes, MeanTraffic& all) {
  if (!all.by_host()) return;
  const auto places = comm::ranges_of(pieces);
  const std::size_t hosts = pieces.size() / all.local();
  Sizes joined;
  for (std::size_t p = 0; p < places.size(); p += hosts)
    joined.push_back(places[p + hosts - 1].end() - places[p].offset);
  all.add(all.by_rank(places), [&](const RankRoutes& rank) {
    return rank.inside.of_reduce_scatter(comm::ranges_of(joined), bytes, bytes);
  });
}

void add_pipeline(const Sizes& pieces, int bits, Direction way,
                  MeanTraffic& all, bool has_groups = true) {
  exchange::LayoutCounts layout;
  layout.add(1, pieces);
  const exchange::Codec& codec = codec_with(bits);
  const auto places = comm::ranges_of(pieces);
  all.add(
      all.by_rank(places),
      [&](const RankRoutes& rank) {
        return exchange::Pipeline::cost(layout, rank, {codec, codec}, way,
                                        has_groups);
      },
      static_cast<double>(places.back().end()) * bits / 8);
}

void add_gather(std::span<const Range> pieces, std::size_t bytes,
                MeanTraffic& all) {
  double gathered = 0;
  for (const Range& piece : pieces)
    gathered += static_cast<double>(piece.size * bytes);
  all.add(
      pieces,
      [&](const RankRoutes& rank) {
        return rank.whole.of_all_gather(pieces, bytes);
      },
      gathered);
}

void add_scalars(std::size_t bytes, MeanTraffic& all) {
  add_gather(all.equal_pieces(all.ranks()), bytes, all);
}

// ---- the ways

void add_exact(const Workload& work, std::size_t bucket, MeanTraffic& all) {
  for_buckets(elements_of(work), bucket, all,
              [&](const Bucket& one, MeanTraffic& traffic) {
                add_average(one.elements, element_bytes(work), traffic);
              });
}

// Adds pipelines with `bits` in both directions. Unless `inner_bytes` is 0,
// sums of values of that size inside hosts precede the pipelines.
void add_both_ways(Way way, const Workload& work, std::size_t bucket, int bits,
                   std::size_t inner_bytes, MeanTraffic& all) {
  for_buckets(elements_of(work), bucket, all,
              [&](const Bucket& one, MeanTraffic& traffic) {
                const Sizes pieces =
                    way == Way::kLean
                        ? cell_pieces(one, bucket, all.ranks())
                        : exchange::chunk_elements(one.elements, all.ranks());
                if (inner_bytes != 0)
                  reduce_inside(pieces, inner_bytes, traffic);
                add_pipeline(pieces, bits, Direction::kBoth, traffic);
              });
}

// Adds both exchanges of factors, after sums of gradients inside hosts.
void add_low_rank(const Workload& work, std::size_t bucket, MeanTraffic& all) {
  if (factor_columns(work) == 0)
    return add_both_ways(Way::kLowRank, work, bucket, 8, kSumBytes, all);
  const auto factors =
      static_cast<std::size_t>(in_full_blocks(factor_elements(work)));
  for_buckets(elements_of(work), bucket, all,
              [&](const Bucket& one, MeanTraffic& traffic) {
                if (all.by_host())
                  add_average_inside(one.elements, kSumBytes, traffic);
                const std::size_t part = std::max<std::size_t>(
                    1, factors * one.elements / elements_of(work));
                for (int exchange = 0; exchange < 2; ++exchange)
                  add_pipeline(exchange::chunk_elements(part, all.ranks()), 8,
                               Direction::kBoth, traffic);
              });
}

// Adds steps that send momentum.
void add_onebit(Way way, const Workload& work, std::size_t bucket,
                MeanTraffic& all) {
  add_both_ways(way, work, bucket,
                way == Way::kOnebitAdam ? work.onebit_bits : 1,
                element_bytes(work), all);
  add_scalars(kScalarBytes, all);
}

// Adds a sync and the preceding local steps. In hierarchical mode every step
// averages gradients inside hosts. All ranks check fp16 gradients.
void add_cycle(const Workload& work, std::size_t bucket, MeanTraffic& all) {
  MeanTraffic sync = all.anew();
  add_both_ways(Way::kZeroOneAdam, work, bucket, 1, 0, sync);
  add_scalars(kScalarBytes, sync);
  MeanTraffic local = all.anew();
  if (work.dtype == DType::kFloat16) add_scalars(1, local);
  add_average_inside(elements_of(work), element_bytes(work), all);
  all.add(sync, 1 / work.steps_per_sync);
  all.add(local, 1 - 1 / work.steps_per_sync);
}

// Adds an exact step before the freeze, and its share of the steps that send
// momentum.
void add_variance_stage(const Workload& work, std::size_t exact_bucket,
                        std::size_t bucket, MeanTraffic& all) {
  const double share = 1 / work.steps_per_variance_step;
  MeanTraffic exact = all.anew();
  add_exact(work, exact_bucket, exact);
  add_scalars(kScalarBytes, exact);
  MeanTraffic onebit = all.anew();
  add_onebit(Way::kZeroOneAdam, work, bucket, onebit);
  all.add(exact, share);
  all.add(onebit, 1 - share);
}

// Adds gradients that are sent up to their owners and parameters that are sent
// down to all ranks.
void add_zero(Way way, const Workload& work, std::size_t bucket,
              MeanTraffic& all) {
  const int bits = zero_bits(way);
  const std::size_t bytes = element_bytes(work);
  for_buckets(elements_of(work), bucket, all,
              [&](const Bucket& one, MeanTraffic& traffic) {
                const Sizes sizes = cell_pieces(one, bucket, all.ranks());
                const auto pieces = all.by_rank(comm::ranges_of(sizes));
                MeanTraffic up = traffic.anew();
                if (bits == 0) {
                  up.add(pieces, [&](const RankRoutes& rank) {
                    return rank.whole.of_reduce_scatter(pieces, bytes,
                                                        kSumBytes);
                  });
                  traffic.add(up, ups_per_step(way, work));
                  add_gather(pieces, bytes, traffic);
                  return;
                }
                reduce_inside(sizes, bytes, up);
                traffic.add(up, work.backwards);
                add_pipeline(sizes, bits, Direction::kUp, traffic);
                add_pipeline(sizes, bits, Direction::kDown, traffic, false);
              });
  add_gather(all.equal_pieces(kernels::sum_chunks(elements_of(work))),
             kNormBytes, all);
}

// Adds a sync of fp32 values and the preceding local steps, in which a host's
// ranks average their gradients. All ranks check fp16 gradients. Before a sync,
// ranks agree on whether changes are finite. ZeRO repeats this agreement.
void add_outer(const Workload& work, std::size_t bucket, MeanTraffic& all) {
  Workload of_sync = work;
  of_sync.dtype = DType::kFloat32;
  of_sync.backwards = 1;
  MeanTraffic sync = all.anew();
  add_zero(Way::kZero4, of_sync, bucket, sync);
  add_scalars(kScalarBytes + kNormBytes, sync);
  add_scalars(kScalarBytes, sync);  // for rho
  all.add(sync, 1 / work.steps_per_outer_sync);
  add_average_inside(elements_of(work), element_bytes(work), all);
  all.add_equal([&](const RankRoutes& rank) {
    return rank.inside.of_all_gather(comm::ranges_of(Sizes(all.local(), 1)),
                                     kScalarBytes);
  });
  if (work.dtype == DType::kFloat16) add_scalars(kScalarBytes, all);
}

// Returns the traffic of a ring between neighbours. One rank of each host sends
// to another host.
Traffic ring_traffic(const Workload& work, const Network& network) {
  const double bytes =
      work.parameters * static_cast<double>(element_bytes(work));
  const double turns = 2.0 * (network.ranks - 1);
  const double sent = turns / network.ranks * bytes;
  const double rounds = turns * std::ceil(bytes / kTorchBucketBytes);
  return {.bytes = sent,
          .bytes_between_hosts =
              network.hosts() > 1 ? sent / network.ranks_per_host : 0,
          .messages = rounds,
          .rounds = rounds};
}

}  // namespace

int zero_bits(Way way) noexcept {
  switch (way) {
    case Way::kZero8:
      return 8;
    case Way::kZero4:
      return 4;
    default:
      return 0;
  }
}

bool is_zero(Way way) noexcept {
  return way == Way::kZero || zero_bits(way) != 0;
}

double ups_per_step(Way way, const Workload& work) noexcept {
  return way == Way::kZero ? work.backwards : 1;
}

int wire_bits(Way way) noexcept {
  if (way == Way::kExact || way == Way::kZero || way == Way::kTorchDdp)
    return 32;
  if (way == Way::kOuter || way == Way::kDdpHook) return 4;
  if (way == Way::kLowRank) return 8;
  return is_zero(way) ? zero_bits(way) : 1;
}

double bucket_elements_of(Way way, bool by_host, const Workload& work,
                          const Network& network) {
  if (way == Way::kTorchDdp || way == Way::kDdpHook)
    return std::min(
        std::ceil(kTorchBucketBytes / static_cast<double>(element_bytes(work))),
        work.parameters);
  comm::Hosts hosts{.size = network.ranks};
  if (by_host) hosts = {network.hosts(), 0, network.ranks_per_host};
  const auto chosen = static_cast<std::size_t>(work.bucket_elements);
  const auto elements = static_cast<std::size_t>(work.parameters);
  const auto bucket = static_cast<double>(
      is_zero(way)
          ? zero_bucket_elements(
                chosen, static_cast<std::size_t>(work.zero_bucket_bound),
                elements, hosts, zero::bucket_bits({.bits_up = zero_bits(way)}))
          : exchange::bucket_elements(chosen, elements, hosts, wire_bits(way)));
  if (way == Way::kExact) return bucket;
  // Whole blocks, none of which is longer than the model.
  constexpr auto kCell = static_cast<double>(kBlock);
  return std::min(std::max(std::floor(bucket / kCell), 1.0) * kCell,
                  std::ceil(work.parameters / kCell) * kCell);
}

Traffic traffic_of(Way way, bool by_host, const Workload& work,
                   const Network& network) {
  if (network.ranks == 1) return {};
  if (way == Way::kTorchDdp) return ring_traffic(work, network);
  const auto bucket_of = [&](Way which) {
    return static_cast<std::size_t>(
        bucket_elements_of(which, by_host, work, network));
  };
  const std::size_t bucket = bucket_of(way);
  MeanTraffic all(by_host, network);
  switch (way) {
    case Way::kExact:
      add_exact(work, bucket, all);
      break;
    case Way::kZeroOneAdam:
      if (work.steps_per_variance_step > 0)
        add_variance_stage(work, bucket_of(Way::kExact), bucket, all);
      else
        add_cycle(work, bucket, all);
      break;
    case Way::kOuter:
      add_outer(work, bucket, all);
      break;
    case Way::kOnebitAdam:
    case Way::kLean:
      add_onebit(way, work, bucket, all);
      break;
    case Way::kLowRank:
      add_low_rank(work, bucket, all);
      break;
    case Way::kDdpHook:
      add_both_ways(way, work, bucket, wire_bits(way), kSumBytes, all);
      break;
    default:
      add_zero(way, work, bucket, all);
  }
  return all.sum();
}

}  // namespace thinwire::plan
