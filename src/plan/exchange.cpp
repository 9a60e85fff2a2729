// SPDX-License-Identifier: Apache-2.0
// Predicts the time of one exchange from a model with three resources: the
// threads that compute, the communicator's thread, and the host's network card.
#include <algorithm>
#include <cmath>
#include <vector>

#include "exchange/codec/sign.h"
#include "plan/parts.h"
#include "thinwire/plan/planner.h"

namespace thinwire::plan {

namespace {

// Bytes of Ethernet, IP and TCP headers; TCP's payload; MPI's envelope.
constexpr double kHeaders = 90, kSegment = 1448, kEnvelope = 48;

constexpr double kLength = 3;             // widths in a matrix's length
constexpr std::size_t kFactorBlock = 64;  // rows that share a scale
constexpr double kMatrices = 32;

double matrices_of(const Workload& work) noexcept {
  return work.matrices.value_or(std::min(kMatrices, work.parameters));
}

double width_of(const Workload& work) noexcept {
  return std::sqrt(work.parameters / matrices_of(work) / kLength);
}

double bytes_per_second(double gbps) { return gbps * 1e9 / 8; }

// Returns the bytes that one message occupies on the wire.
double wire_bytes(const Network& network, double payload) {
  if (payload <= 0 || !network.is_framed) return std::max(payload, 0.0);
  const double segments = std::ceil((payload + kEnvelope) / kSegment);
  return payload + kEnvelope + kHeaders * segments;
}

}  // namespace

Network inside_of(const Network& network) {
  Network inside = network;
  inside.ranks = network.ranks_per_host;
  return inside;
}

// Returns the network between hosts, in which the G groups of one rank per host
// share the card.
Network between_of(const Network& network) {
  Network between = network;
  between.ranks = network.hosts();
  between.ranks_per_host = 1;
  between.gbps = network.gbps / network.ranks_per_host;
  return between;
}

double collective_seconds(const Network& network, double bytes) {
  if (network.ranks == 1) return 0;
  const double ranks = network.ranks;
  const double local = network.ranks_per_host;
  const double piece = bytes / ranks;
  const double card = local * (ranks - local) * wire_bytes(network, piece) /
                      bytes_per_second(network.gbps);
  const double inside = (local - 1) * piece / network.inner_bytes_per_second;
  const double messages = (ranks - local) * network.message_seconds +
                          (local - 1) * network.inner_message_seconds;
  const double latency =
      ranks > local ? network.latency_seconds : network.inner_latency_seconds;
  return latency + std::max({card, inside, messages});
}

double ring_seconds(const Network& network, double bytes, double bucket_bytes) {
  if (network.ranks == 1) return 0;
  const double ranks = network.ranks;
  const bool is_one_host = network.hosts() == 1;
  double steps = 2 * (ranks - 1);
  if (!is_one_host)
    steps = std::min(steps, 4 * std::ceil(std::log2(network.hosts())));
  const double payload =
      network.is_framed ? kSegment / (kSegment + kHeaders) : 1;
  const double latency =
      is_one_host ? network.inner_latency_seconds : network.latency_seconds;
  const double rate = is_one_host ? network.inner_bytes_per_second
                                  : bytes_per_second(network.gbps) * payload;
  return std::ceil(bytes / bucket_bytes) * steps * latency +
         2 * (ranks - 1) / ranks * bytes / rate;
}

double direct_seconds(const Network& network, double bytes,
                      double bucket_bytes) {
  return std::ceil(bytes / bucket_bytes) * 2 *
         collective_seconds(network, std::min(bucket_bytes, bytes));
}

double direct_by_host_seconds(const Network& network, double bytes,
                              double bucket_bytes, double sum_widening) {
  const double count = std::ceil(bytes / bucket_bytes);
  const Network between = between_of(network);
  const double share = bucket_bytes / network.ranks_per_host;
  const double outer =
      count * (collective_seconds(between, share * sum_widening) +
               collective_seconds(between, share));
  const double legs = 2 * collective_seconds(inside_of(network), bucket_bytes);
  return std::max(outer, count * legs) + legs;
}

const exchange::Codec& codec_with(int bits) {
  if (bits == 1) return exchange::sign_codec();
  return exchange::codec_of(bits);
}

double record_bytes_per_element(int bits) {
  return static_cast<double>(codec_with(bits).record_bytes(kBlock)) / kBlock;
}

double factor_columns(const Workload& work) noexcept {
  const double width = width_of(work);
  const double columns = std::min(static_cast<double>(work.low_rank), width);
  const bool is_small = 2 * columns * (1 + kLength) < kLength * width;
  return is_small ? columns : 0;
}

double factor_elements(const Workload& work) noexcept {
  return factor_columns(work) * matrices_of(work) * width_of(work) *
         (1 + kLength) / 2;
}

double in_full_blocks(double elements) noexcept {
  return elements *
         static_cast<double>(codec_with(8).record_bytes(kFactorBlock)) /
         kFactorBlock / record_bytes_per_element(8);
}

double two_phase_seconds(const Network& network, const LowBitExchange& exchange,
                         const Compute& compute, const Ready& ready) {
  const double n = exchange.elements;
  const double bucket = exchange.bucket_elements;
  const auto count =
      static_cast<std::size_t>(std::max(1.0, std::ceil(n / bucket)));
  const auto size = [&](std::size_t k) {
    return std::min(bucket, n - static_cast<double>(k) * bucket);
  };
  // Times at which the threads and the wire become free, and at which a bucket
  // has arrived.
  double threads = 0;
  double wire = 0;
  const double bytes_up = record_bytes_per_element(exchange.bits_up);
  const double bytes_down = record_bytes_per_element(exchange.bits_down);
  std::vector<double> up(count);
  std::vector<double> down(count);
  for (std::size_t turn = 0; turn < count + 4; ++turn) {
    const std::size_t averaged = turn - 2;  // wraps to a number above count
    const std::size_t applied = turn - 4;
    if (turn < count && ready) threads = std::max(threads, ready(turn, count));
    if (averaged < count) threads = std::max(threads, up[averaged]);
    if (applied < count) threads = std::max(threads, down[applied]);
    threads += compute.turn;
    if (turn < count) threads += size(turn) * compute.encode;
    if (averaged < count) threads += size(averaged) * compute.serve;
    if (applied < count) threads += size(applied) * compute.update;
    const auto travel = [&](std::size_t k, double bytes) {
      wire = std::max(wire, threads) +
             collective_seconds(network, size(k) * bytes);
      return wire;
    };
    if (turn < count) up[turn] = travel(turn, bytes_up);
    if (averaged < count) down[averaged] = travel(averaged, bytes_down);
  }
  return threads;
}

// Rank l of each host exchanges piece l. The exchanges inside the host are
// hidden behind the outer one, except for one bucket.
double two_phase_by_host_seconds(const Network& network,
                                 const LowBitExchange& exchange,
                                 const Compute& compute) {
  const double local = network.ranks_per_host;
  LowBitExchange share = exchange;
  share.elements /= local;
  share.bucket_elements /= local;
  Compute scaled = compute;
  scaled.update *= local;  // because every rank updates the whole model
  const Network inside = inside_of(network);
  const double outer = two_phase_seconds(between_of(network), share, scaled);
  const double legs =
      collective_seconds(inside,
                         exchange.bucket_elements * exchange.inner_bytes) +
      collective_seconds(inside,
                         exchange.bucket_elements *
                             record_bytes_per_element(exchange.bits_down));
  const double count = std::ceil(exchange.elements / exchange.bucket_elements);
  return std::max(outer, count * legs) + legs;
}

}  // namespace thinwire::plan
