// SPDX-License-Identifier: Apache-2.0
// Predicts the time of a step from the parts that overlap. docs/guide/plan.md
// lists the included costs.
#include <algorithm>
#include <cmath>

#include "plan/parts.h"
#include "thinwire/plan/planner.h"

namespace thinwire::plan {

namespace {

// Part of backward that ends before the average begins: the first of eight
// buckets.
constexpr double kFirstPart = 1.0 / 8;

/// A step of one way. `transport` is the processor time of its communication.
struct Step {
  Way way;
  bool by_host;
  const Workload& work;
  const Network& network;
  const Compute& compute;
  double transport;

  [[nodiscard]] double elements() const { return work.parameters; }
  [[nodiscard]] double element_bytes() const {
    return static_cast<double>(size_of(work.dtype));
  }
  [[nodiscard]] double local() const {
    return by_host ? network.ranks_per_host : 1;
  }
  /// Returns the seconds that this rank computes for an exchange.
  [[nodiscard]] double computing(const Compute& of) const {
    return elements() * ((of.encode + of.serve) / local() + of.update);
  }
  /// Returns the seconds before the last backward.
  [[nodiscard]] double before() const {
    return work.backwards * work.forward_seconds +
           (work.backwards - 1) * work.backward_seconds;
  }
  [[nodiscard]] double buckets() const {
    return std::ceil(elements() /
                     bucket_elements_of(way, by_host, work, network));
  }
  /// Returns the elements of a bucket if the same number of buckets were equal.
  /// The formulas of exchanges assume full buckets, although the last one may
  /// be shorter. The small factor prevents these formulas from counting an
  /// extra bucket.
  [[nodiscard]] double bucket_elements() const {
    return elements() / buckets() * (1 + 1e-12);
  }
  [[nodiscard]] double bucket_bytes() const {
    return bucket_elements() * element_bytes();
  }
};

// Returns the seconds from the beginning of backward until a concurrent
// exchange has ended. The exchange alone takes `wire`, of which `busy` is
// processor time. An exchange with a separate core does not slow backward down.
double beside_backward(const Workload& work, double backward, double wire,
                       double busy) {
  const double shared = work.has_spare_core ? backward : backward + busy;
  return std::max(shared, std::max(wire, busy) + backward * kFirstPart);
}

// Returns the seconds of an exact average on the link.
double direct(const Step& step) {
  const double size = step.element_bytes(), bytes = step.elements() * size;
  return step.by_host
             ? direct_by_host_seconds(step.network, bytes, step.bucket_bytes(),
                                      4 / size)
             : direct_seconds(step.network, bytes, step.bucket_bytes());
}

// Returns the seconds of a low-bit exchange.
double pipelined(const Step& step, const LowBitExchange& exchange,
                 const Compute& compute) {
  return step.by_host
             ? two_phase_by_host_seconds(step.network, exchange, compute)
             : two_phase_seconds(step.network, exchange, compute);
}

double exact_seconds(const Step& step) {
  const double n = step.elements();
  double exchange = 0, busy = 0;
  if (step.network.ranks > 1) {
    const double sums = n * step.compute.sum;
    exchange =
        sums + (step.way == Way::kTorchDdp
                    ? ring_seconds(step.network, n * step.element_bytes(),
                                   kTorchBucketBytes)
                    : direct(step));
    busy = sums + step.transport;
  }
  const double norm = step.way == Way::kTorchDdp ? 0 : step.compute.norm;
  return step.before() +
         beside_backward(step.work, step.work.backward_seconds, exchange,
                         busy) +
         n * (norm + step.compute.exact_update);
}

// Returns the seconds before a low-bit step in which every rank sends its
// gradient's norm to all others.
double agreement_seconds(const Network& network) {
  return collective_seconds(network, kScalarBytes * network.ranks);
}

LowBitExchange exchange_of(const Step& step) {
  const int bits = step.way == Way::kOnebitAdam ? step.work.onebit_bits
                                                : wire_bits(step.way);
  return {.elements = step.elements(),
          .bucket_elements = step.bucket_elements(),
          .bits_up = bits,
          .bits_down = bits,
          .inner_bytes = step.element_bytes()};
}

// Returns the seconds of a separate exchange. If threads and communication
// share a core, they do not overlap.
double two_phases(const Step& step, const LowBitExchange& exchange,
                  const Compute& compute, double transport) {
  const double computing =
      step.work.has_spare_core ? 0 : step.computing(compute);
  return std::max(pipelined(step, exchange, compute), computing + transport);
}

// Returns the seconds of an exchange that is encoded and served on backward's
// thread, and applied afterwards.
double during_backward(const Step& step) {
  const Workload& work = step.work;
  const Compute& compute = step.compute;
  const double n = step.elements();
  const double end = two_phase_seconds(
      step.network, exchange_of(step), Compute{.turn = compute.turn},
      [&](std::size_t k, std::size_t count) {
        return work.backward_seconds * static_cast<double>(k + 1) /
               static_cast<double>(count);
      });
  double slower = n * (compute.encode + compute.serve);
  if (!work.has_spare_core) slower += n * compute.norm + step.transport;
  return step.before() + std::max(end, work.backward_seconds) + slower +
         agreement_seconds(step.network) + n * compute.update;
}

double onebit_seconds(const Step& step) {
  const Workload& work = step.work;
  const Compute& compute = step.compute;
  const double n = step.elements();
  if (step.network.ranks == 1)
    return step.before() + work.backward_seconds + n * compute.exact_update;
  if (work.sends_during_backward && !step.by_host &&
      step.way == Way::kOnebitAdam)
    return during_backward(step);
  return step.before() + work.backward_seconds + n * compute.norm +
         agreement_seconds(step.network) +
         two_phases(step, exchange_of(step), compute, step.transport);
}

// Returns the seconds of a hook, which encodes gradients, averages them and
// decodes them into DDP's buckets, on its own thread during backward. torch's
// optimizer follows.
double hook_seconds(const Step& step) {
  const Compute& compute = step.compute;
  const double n = step.elements();
  double busy = 0, wire = 0;
  if (step.network.ranks > 1) {
    const Compute beside = quantizing(compute, compute.dequantize);
    LowBitExchange exchange = exchange_of(step);
    exchange.inner_bytes = sizeof(float);
    wire = pipelined(step, exchange, beside);
    busy = step.transport + step.computing(beside);
  }
  return step.before() +
         beside_backward(step.work, step.work.backward_seconds, wire, busy) +
         n * compute.exact_update;
}

// Returns the seconds of a low-rank step. Factors are sent in two exchanges and
// in parts, so that exchanges of one part overlap products of other parts.
double low_rank_seconds(const Step& step) {
  const Compute& compute = step.compute;
  const double n = step.elements();
  const double columns = factor_columns(step.work);
  if (columns == 0) return hook_seconds(step) + n * compute.norm;
  double busy = 0, wire = 0;
  if (step.network.ranks > 1) {
    LowBitExchange factors = exchange_of(step);
    factors.elements = in_full_blocks(factor_elements(step.work));
    factors.bucket_elements = factors.elements / step.buckets();
    factors.inner_bytes = 0;
    const double legs =
        step.by_host
            ? direct_seconds(inside_of(step.network), n * sizeof(float),
                             step.bucket_elements() * sizeof(float))
            : 0;
    wire = legs + 2 * pipelined(step, factors, {.turn = compute.turn});
    const double products = compute.factor / step.local() + compute.product;
    busy = step.transport + n * products * columns / Compute::kRank;
  }
  return step.before() +
         beside_backward(step.work, step.work.backward_seconds, wire, busy) +
         n * (compute.norm + compute.exact_update);
}

// Exact average of gradients inside hosts, in every local step.
struct InsideAverage {
  double wire = 0;
  double busy = 0;  // processor seconds
  [[nodiscard]] double seconds() const { return std::max(wire, busy); }
};

InsideAverage average_inside(const Step& step) {
  if (!step.by_host) return {};
  const double bytes = step.elements() * step.element_bytes();
  return {.wire = direct_seconds(inside_of(step.network), bytes, bytes),
          .busy = 2 * (step.local() - 1) / step.local() * bytes *
                  step.network.inner_processor_seconds_per_byte};
}

// Returns the seconds of a cycle of one sync and the preceding local steps. The
// sync's encoding includes its local step, and the first local step afterwards
// allocates m. In hierarchical mode every step averages gradients inside hosts.
double cycle_seconds(const Step& step) {
  const Network& network = step.network;
  const Compute& compute = step.compute;
  const double n = step.elements(), steps = step.work.steps_per_sync;
  const double every =
      step.before() + step.work.backward_seconds + n * compute.norm;
  if (network.ranks == 1) return every + n * compute.local_step;
  LowBitExchange exchange = exchange_of(step);
  if (step.by_host) exchange.inner_bytes = 0;  // the ranks of a host are equal
  const InsideAverage inside = average_inside(step);
  Compute syncing = compute;
  syncing.encode = compute.sync_encode;
  syncing.update = compute.sync_update;
  const double sync = agreement_seconds(network) +
                      two_phases(step, exchange, syncing,
                                 (step.transport - inside.busy) * steps);
  const double first = steps > 1 ? n * compute.fresh : 0;
  return every + inside.seconds() +
         ((steps - 1) * n * compute.local_step + first + sync) / steps;
}

// Returns whether the way has a stage before the freeze with exact steps and
// momentum steps between them.
bool is_variance_stage(Way way, const Workload& work, const Network& network) {
  return way == Way::kZeroOneAdam && work.steps_per_variance_step > 0 &&
         network.ranks > 1;
}

double variance_stage_seconds(const Step& step, const Transport& transport) {
  const double share = 1 / step.work.steps_per_variance_step;
  Step exact = step, onebit = step;
  exact.way = Way::kExact;
  exact.transport = transport.exact;
  onebit.transport = transport.onebit;
  return share * exact_seconds(exact) + (1 - share) * onebit_seconds(onebit);
}

// Returns the seconds of ZeRO's reduce-scatter or gather on the link, each of
// which is half of an average or of an exchange.
double half_way(const Step& step) {
  return (zero_bits(step.way) != 0
              ? pipelined(step, exchange_of(step), {.turn = 0})
              : direct(step)) /
         2;
}

// Returns the processor seconds per backward of the exchange inside the host,
// if every backward exchanges there but only the last one between hosts.
double inside_busy(const Step& step) {
  if (!step.by_host || zero_bits(step.way) == 0) return 0;
  return (step.local() - 1) / step.local() * step.elements() *
         step.element_bytes() * step.network.inner_processor_seconds_per_byte;
}

// Returns the seconds of each backward except the last one of a window. The
// last backward takes `last` until its gradients are averaged. In full
// precision the earlier ones send as much.
double earlier_backward(const Step& step, double last) {
  if (zero_bits(step.way) == 0) return last;
  const double backward = step.work.backward_seconds;
  if (!step.by_host) return backward;
  return beside_backward(step.work,
                         backward + step.elements() * step.compute.store,
                         direct_seconds(inside_of(step.network),
                                        step.elements() * step.element_bytes(),
                                        step.bucket_bytes()) /
                             2,
                         inside_busy(step));
}

// Returns the seconds of a ZeRO step. Gradients are sent during backward: the
// computing threads copy them into buckets and, with 4 or 8 bits, encode and
// average them. Norms follow. Parameters are gathered during the updates of
// shards, except during the first update.
double zero_seconds(const Step& step) {
  const Workload& work = step.work;
  const Compute& compute = step.compute;
  const double n = step.elements();
  const double own = n / step.network.ranks;
  double update = own * (compute.norm + compute.exact_update);
  if (step.network.ranks == 1)
    return step.before() + work.backward_seconds + n * compute.store + update;
  double backward = work.backward_seconds + n * compute.store;
  const double busy_down =
      (step.transport - (work.backwards - 1) * inside_busy(step)) /
      (ups_per_step(step.way, work) + 1);
  double up = half_way(step), busy = busy_down;
  const double down = up;
  if (zero_bits(step.way) != 0) {
    backward += n * (compute.quantize + compute.quantized_mean) / step.local();
    update += n * (compute.difference + compute.dequantize);
  } else {
    up += n * compute.sum;
    busy += n * compute.sum;
  }
  const double after_up = beside_backward(work, backward, up, busy);
  const double shared = work.has_spare_core ? update : update + busy_down;
  return work.backwards * work.forward_seconds +
         (work.backwards - 1) * earlier_backward(step, after_up) + after_up +
         collective_seconds(
             step.network,
             std::ceil(n / static_cast<double>(kBlock)) * kNormBytes) +
         std::max(shared, std::max(down, busy_down) + update / step.buckets());
}

// Returns the seconds of a local step and its share of a sync. A sync is a
// separate exchange of fp32 values. In hierarchical mode every step averages
// gradients inside hosts.
double outer_seconds(const Step& step) {
  const Network& network = step.network;
  const Compute& compute = step.compute;
  const double n = step.elements(), steps = step.work.steps_per_outer_sync;
  const double own = n / network.ranks;
  const double every = step.before() + step.work.backward_seconds +
                       n * (compute.norm + compute.exact_update);
  if (network.ranks == 1) return every;
  const Compute syncing =
      quantizing(compute, compute.difference + compute.dequantize);
  LowBitExchange exchange = exchange_of(step);
  exchange.inner_bytes = sizeof(float);
  const InsideAverage inside = average_inside(step);
  const double sync = 2 * agreement_seconds(network) +
                      two_phases(step, exchange, syncing,
                                 (step.transport - inside.busy) * steps) +
                      2 * n * compute.norm +
                      own * (compute.norm + compute.exact_update);
  return every + inside.seconds() + sync / steps;
}

}  // namespace

Compute quantizing(Compute compute, double update) {
  compute.encode = compute.quantize;
  compute.serve = compute.quantized_mean;
  compute.update = update;
  return compute;
}

Transport transport_of(Way way, bool by_host, const Workload& work,
                       const Network& network) {
  const double outside = network.processor_seconds_per_byte;
  const double inside = network.inner_processor_seconds_per_byte;
  if (outside == 0 && inside == 0) return {};
  const auto seconds = [&](Way which) {
    const Traffic traffic = traffic_of(which, by_host, work, network);
    return traffic.bytes_between_hosts * outside +
           (traffic.bytes - traffic.bytes_between_hosts) * inside;
  };
  if (!is_variance_stage(way, work, network)) return {.step = seconds(way)};
  return {seconds(way), seconds(Way::kExact), seconds(Way::kOnebitAdam)};
}

double step_seconds(Way way, bool by_host, const Workload& work,
                    const Network& network, const Compute& compute) {
  return step_seconds(way, by_host, work, network, compute,
                      transport_of(way, by_host, work, network));
}

double step_seconds(Way way, bool by_host, const Workload& work,
                    const Network& network, const Compute& compute,
                    const Transport& transport) {
  const Step step{way, by_host, work, network, compute, transport.step};
  if (way == Way::kExact || way == Way::kTorchDdp) return exact_seconds(step);
  if (way == Way::kDdpHook) return hook_seconds(step);
  if (way == Way::kLowRank) return low_rank_seconds(step);
  if (is_zero(way)) return zero_seconds(step);
  if (way == Way::kOuter) return outer_seconds(step);
  if (way != Way::kZeroOneAdam) return onebit_seconds(step);
  if (is_variance_stage(way, work, network))
    return variance_stage_seconds(step, transport);
  return cycle_seconds(step);
}

double overlapped_step_seconds(const Workload& work, const Compute& compute,
                               double exchange_seconds) {
  const Network alone;
  const Step step{Way::kExact, false, work, alone, compute, 0};
  return step.before() +
         beside_backward(work, work.backward_seconds, exchange_seconds, 0) +
         work.parameters * compute.exact_update;
}

}  // namespace thinwire::plan
