// SPDX-License-Identifier: Apache-2.0
// Bytes and messages of a step, as the optimizers' collectives send them.
#include <algorithm>
#include <cmath>

#include "comm/routes.h"
#include "plan/collectives.h"
#include "plan/parts.h"
#include "plan/zero_buckets.h"
#include "thinwire/exchange/bucket_rule.h"
#include "thinwire/plan/planner.h"
#include "thinwire/zero/wire_options.h"

namespace thinwire::plan {

namespace {

constexpr auto kCell = static_cast<double>(kBlock);

double cells_in(double elements) { return std::ceil(elements / kCell); }

// Records of pieces that begin at blocks.
Pieces records_of(std::span<const double> elements, int bits) {
  Pieces bytes;
  for (const double piece : elements) {
    const double full = std::floor(piece / kCell);
    const auto rest = static_cast<std::size_t>(piece - full * kCell);
    double of_rest = 0;
    if (rest != 0)
      of_rest = 4 + std::ceil(static_cast<double>(rest) * bits / 32) * 4;
    bytes.push_back(full * record_bytes_per_element(bits) * kCell + of_rest);
  }
  return bytes;
}

// Divides a bucket's blocks among servers as exchange::BlockLayout does. Each
// chunk begins with the first block at or after its server's share.
Pieces block_pieces(double elements, std::size_t ranks) {
  Pieces pieces;
  double begin = 0;
  for (std::size_t r = 1; r <= ranks; ++r) {
    const double share =
        elements * static_cast<double>(r) / static_cast<double>(ranks);
    const double end = std::min(cells_in(share) * kCell, elements);
    pieces.push_back(end - begin);
    begin = end;
  }
  return pieces;
}

// A bucket, and how many there are of it.
struct Bucket {
  double elements = 0;
  double count = 0;
  double before = 0;  // buckets
};

std::vector<Bucket> buckets_of(double elements, double most) {
  const double full = std::floor(elements / most);
  std::vector<Bucket> buckets;
  if (full > 0) buckets.push_back({most, full, 0});
  if (const double rest = elements - full * most; rest > 0)
    buckets.push_back({rest, 1, full});
  return buckets;
}

// Divides a bucket's cells among owners as zero::ShardLayout does. Remaining
// cells go to places in turn, beginning after the previous bucket's last one.
// For full buckets it describes the first one.
Pieces cell_pieces(const Bucket& bucket, double most, std::size_t ranks) {
  const double left_over =
      std::fmod(cells_in(most), static_cast<double>(ranks));
  const auto turn = static_cast<std::size_t>(
      std::fmod(bucket.before * left_over, static_cast<double>(ranks)));
  const double count = cells_in(bucket.elements);
  const Pieces cells = equal_pieces(count, ranks);
  Pieces pieces(ranks);
  for (std::size_t r = 0; r < ranks; ++r)
    pieces[r] = cells[(r + ranks - turn) % ranks] * kCell;
  // The last cell, of the last place that has one, may be shorter.
  const auto last = std::find_if(pieces.rbegin(), pieces.rend(),
                                 [](double piece) { return piece > 0; });
  if (last != pieces.rend()) *last -= count * kCell - bucket.elements;
  return pieces;
}

// Adds what body(bucket, traffic) does for each bucket of a model.
template <class Body>
void for_buckets(double elements, double most, HostTraffic& all, Body&& body) {
  for (const Bucket& bucket : buckets_of(elements, most)) {
    HostTraffic traffic = all.anew();
    body(bucket, traffic);
    all.add(traffic, bucket.count);
  }
}

double element_bytes(const Workload& work) {
  return static_cast<double>(size_of(work.dtype));
}

// ---- what the ways do with a bucket

// Adds an all-reduce. In hierarchical mode it runs in slices whose sums fit the
// communicator's memory.
void add_average(double elements, double bytes, HostTraffic& all) {
  constexpr double kSums = comm::kScratchBytes / sizeof(float);
  const double most = all.by_host() ? kSums * all.local() : elements;
  for_buckets(elements, most, all, [&](const Bucket& slice, HostTraffic& one) {
    const Pieces pieces = equal_pieces(slice.elements, all.ranks());
    one.reduce_scatter(pieces, bytes);
    one.across(times(pieces, bytes), &GroupTraffic::all_to_all);
    one.within(times(pieces, bytes), &GroupTraffic::all_to_all);
  });
}

// An all-reduce inside the hosts.
void add_average_inside(double elements, double bytes, HostTraffic& all) {
  const Pieces pieces =
      equal_pieces(elements, static_cast<std::size_t>(all.local()));
  all.inside([&](GroupTraffic& group) {
    group.reduce(pieces, bytes);
    group.all_to_all(times(pieces, bytes));
  });
}

void reduce_inside(const Pieces& pieces, double bytes, HostTraffic& all) {
  all.within(pieces, [&](GroupTraffic& group, std::span<const double> own) {
    group.reduce(own, bytes);
  });
}

// exchange::TwoPhaseExchange.
void add_two_phases(const Pieces& records, HostTraffic& all) {
  all.across(records, &GroupTraffic::all_to_all);
  all.across(records, &GroupTraffic::all_gather);
  all.within(records, &GroupTraffic::all_gather);
}

void add_scalars(double bytes, HostTraffic& all) {
  all.all_gather_by_rank(Pieces(all.ranks(), bytes));
}

// ---- the ways

void add_exact(const Workload& work, double bucket, HostTraffic& all) {
  for_buckets(work.parameters, bucket, all,
              [&](const Bucket& one, HostTraffic& traffic) {
                add_average(one.elements, element_bytes(work), traffic);
              });
}

// Steps in which momentum travels.
void add_onebit(Way way, const Workload& work, double bucket,
                HostTraffic& all) {
  for_buckets(
      work.parameters, bucket, all,
      [&](const Bucket& one, HostTraffic& traffic) {
        const Pieces pieces = way == Way::kLean
                                  ? cell_pieces(one, bucket, all.ranks())
                                  : block_pieces(one.elements, all.ranks());
        reduce_inside(pieces, element_bytes(work), traffic);
        add_two_phases(
            records_of(pieces, way == Way::kOnebitAdam ? work.onebit_bits : 1),
            traffic);
      });
  add_scalars(kScalarBytes, all);
}

// DDP's buckets, in fp32 inside a host.
void add_hook(const Workload& work, double bucket, HostTraffic& all) {
  for_buckets(work.parameters, bucket, all,
              [&](const Bucket& one, HostTraffic& traffic) {
                const Pieces pieces = block_pieces(one.elements, all.ranks());
                reduce_inside(pieces, sizeof(float), traffic);
                add_two_phases(records_of(pieces, wire_bits(Way::kDdpHook)),
                               traffic);
              });
}

// Adds a sync and the local steps before it. In hierarchical mode gradients are
// averaged inside hosts in every step. All ranks check fp16 gradients.
void add_cycle(const Workload& work, double bucket, HostTraffic& all) {
  HostTraffic sync = all.anew();
  for_buckets(work.parameters, bucket, sync,
              [&](const Bucket& one, HostTraffic& traffic) {
                const Pieces pieces = block_pieces(one.elements, all.ranks());
                add_two_phases(records_of(pieces, 1), traffic);
              });
  add_scalars(kScalarBytes, sync);
  HostTraffic local = all.anew();
  if (work.dtype == DType::kFloat16) add_scalars(1, local);
  add_average_inside(work.parameters, element_bytes(work), all);
  all.add(sync, 1 / work.steps_per_sync);
  all.add(local, 1 - 1 / work.steps_per_sync);
}

// Before its freeze: an exact step, and some in which momentum travels.
void add_variance_stage(const Workload& work, double exact_bucket,
                        double bucket, HostTraffic& all) {
  const double share = 1 / work.steps_per_variance_step;
  HostTraffic exact = all.anew();
  add_exact(work, exact_bucket, exact);
  add_scalars(kScalarBytes, exact);
  HostTraffic onebit = all.anew();
  add_onebit(Way::kZeroOneAdam, work, bucket, onebit);
  all.add(exact, share);
  all.add(onebit, 1 - share);
}

// Gradients up to their owners, parameters down to all ranks.
void add_zero(Way way, const Workload& work, double bucket, HostTraffic& all) {
  const int bits = zero_bits(way);
  const double bytes = element_bytes(work);
  for_buckets(work.parameters, bucket, all,
              [&](const Bucket& one, HostTraffic& traffic) {
                const Pieces pieces = cell_pieces(one, bucket, all.ranks());
                if (bits == 0) {
                  HostTraffic up = traffic.anew();
                  up.reduce_scatter(pieces, bytes);
                  traffic.add(up, ups_per_step(way, work));
                  traffic.all_gather(times(pieces, bytes));
                  return;
                }
                const Pieces records = records_of(pieces, bits);
                HostTraffic inside = traffic.anew();
                reduce_inside(pieces, bytes, inside);
                traffic.add(inside, work.backwards);
                traffic.across(records, &GroupTraffic::all_to_all);
                traffic.all_gather(records);
              });
  all.all_gather_by_rank(
      times(equal_pieces(cells_in(work.parameters), all.ranks()), kNormBytes));
}

// Adds a sync of fp32 values and the local steps before it, in which ranks of a
// host average their gradients. All ranks check fp16 gradients. Before a sync
// ranks agree on whether changes are finite, as ZeRO does again.
void add_outer(const Workload& work, double bucket, HostTraffic& all) {
  Workload of_sync = work;
  of_sync.dtype = DType::kFloat32;
  of_sync.backwards = 1;
  HostTraffic sync = all.anew();
  add_zero(Way::kZero4, of_sync, bucket, sync);
  add_scalars(kScalarBytes + kNormBytes, sync);
  add_scalars(kScalarBytes, sync);  // for rho
  all.add(sync, 1 / work.steps_per_outer_sync);
  add_average_inside(work.parameters, element_bytes(work), all);
  all.inside([&](GroupTraffic& group) {
    group.all_gather(
        Pieces(static_cast<std::size_t>(all.local()), kScalarBytes));
  });
  if (work.dtype == DType::kFloat16) add_scalars(kScalarBytes, all);
}

// A ring between neighbours. One rank of each host sends to another host.
Traffic ring_traffic(const Workload& work, const Network& network) {
  const double bytes = work.parameters * element_bytes(work);
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
  return is_zero(way) ? zero_bits(way) : 1;
}

double bucket_elements_of(Way way, bool by_host, const Workload& work,
                          const Network& network) {
  if (way == Way::kTorchDdp || way == Way::kDdpHook)
    return std::min(std::ceil(kTorchBucketBytes / element_bytes(work)),
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
  // Whole blocks; none is longer than the model.
  return std::min(std::max(std::floor(bucket / kCell), 1.0) * kCell,
                  cells_in(work.parameters) * kCell);
}

Traffic traffic_of(Way way, bool by_host, const Workload& work,
                   const Network& network) {
  if (network.ranks == 1) return {};
  if (way == Way::kTorchDdp) return ring_traffic(work, network);
  const double bucket = bucket_elements_of(way, by_host, work, network);
  HostTraffic all(by_host, network);
  switch (way) {
    case Way::kExact:
      add_exact(work, bucket, all);
      break;
    case Way::kZeroOneAdam:
      if (work.steps_per_variance_step > 0)
        add_variance_stage(
            work, bucket_elements_of(Way::kExact, by_host, work, network),
            bucket, all);
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
    case Way::kDdpHook:
      add_hook(work, bucket, all);
      break;
    default:
      add_zero(way, work, bucket, all);
  }
  return all.sum();
}

}  // namespace thinwire::plan
