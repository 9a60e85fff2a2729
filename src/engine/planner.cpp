// SPDX-License-Identifier: Apache-2.0
#include "thinwire/engine/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/require.h"
#include "engine/planner_parts.h"

namespace thinwire::engine {

namespace {

// What is left to average when backward ends: the last of eight buckets.
constexpr double kLastPart = 1.0 / 8;

bool has_hosts(const Network& network) {
  return network.ranks_per_host > 1 && network.hosts() > 1;
}

// LeanOnebitAdam refuses a communicator by host.
bool can_go_by_host(Way way) { return way != Way::kLean; }

double backwards_seconds(const Workload& work) {
  return work.forward_seconds + work.earlier_seconds;
}

double exact_seconds(bool by_host, const Workload& work, const Network& network,
                     const Compute& compute) {
  const auto size = static_cast<double>(size_of(work.dtype));
  const double bytes = work.parameters * size;
  const double bucket =
      bucket_elements_of(Way::kExact, by_host, work, network) * size;
  const double sums = network.ranks > 1 ? work.parameters * compute.sum : 0;
  double exchange = sums;
  if (network.ranks > 1)
    exchange += by_host
                    ? direct_by_host_seconds(network, bytes, bucket, 4 / size)
                    : direct_seconds(network, bytes, bucket);
  // On a core of its own the exchange's sums do not slow backward down.
  Workload slowed = work;
  if (!work.has_spare_core) slowed.backward_seconds += sums;
  return overlapped_step_seconds(slowed, compute, exchange);
}

LowBitExchange exchange_of(Way way, bool by_host, const Workload& work,
                           const Network& network) {
  const int bits = wire_bits(way);
  return {.elements = work.parameters,
          .bucket_elements = bucket_elements_of(way, by_host, work, network),
          .bits_up = bits,
          .bits_down = bits,
          .inner_bytes = static_cast<double>(size_of(work.dtype))};
}

double after_backward(Way way, bool by_host, const Workload& work,
                      const Network& network, const Compute& compute) {
  const LowBitExchange exchange = exchange_of(way, by_host, work, network);
  if (by_host) return two_phase_by_host_seconds(network, exchange, compute);
  return two_phase_seconds(network, exchange, compute);
}

double onebit_seconds(Way way, bool by_host, const Workload& work,
                      const Network& network, const Compute& compute) {
  const double n = work.parameters;
  if (network.ranks == 1)
    return backwards_seconds(work) + work.backward_seconds +
           n * compute.exact_update;
  const double norm = n * compute.norm;
  if (!work.compressed_during_backward || by_host || way != Way::kOnebitAdam)
    return backwards_seconds(work) + work.backward_seconds + norm +
           after_backward(way, by_host, work, network, compute);
  Compute beside = compute;
  beside.update = 0;
  if (!work.has_spare_core) beside = Compute{.turn = compute.turn};
  const double end = two_phase_seconds(
      network, exchange_of(way, by_host, work, network), beside,
      [&](std::size_t k, std::size_t count) {
        return work.backward_seconds * static_cast<double>(k + 1) /
               static_cast<double>(count);
      });
  const double slower =
      work.has_spare_core ? 0 : norm + n * (compute.encode + compute.serve);
  return backwards_seconds(work) + std::max(end, work.backward_seconds) +
         slower + n * compute.update;
}

// A local step is Adam's, but for what it adds up; a sync comes on top.
double zero_one_seconds(bool by_host, const Workload& work,
                        const Network& network, const Compute& compute) {
  double seconds = backwards_seconds(work) + work.backward_seconds +
                   work.parameters * (compute.exact_update + compute.norm);
  if (network.ranks == 1) return seconds;
  LowBitExchange exchange =
      exchange_of(Way::kZeroOneAdam, by_host, work, network);
  double sync = 0;
  if (by_host) {
    const double bucket = exchange.bucket_elements * exchange.inner_bytes;
    seconds += direct_seconds(inside_of(network),
                              work.parameters * exchange.inner_bytes, bucket);
    exchange.inner_bytes = 0;  // hosts' ranks are equal: nothing goes up
    sync = two_phase_by_host_seconds(network, exchange, compute);
  } else {
    sync = two_phase_seconds(network, exchange, compute);
  }
  return seconds + sync / work.steps_per_sync;
}

// Gradients go up during backward, parameters down with the update.
double zero_seconds(bool by_host, const Workload& work, const Network& network,
                    const Compute& compute) {
  const double n = work.parameters;
  const double own_update = n / network.ranks * compute.exact_update;
  if (network.ranks == 1)
    return backwards_seconds(work) + work.backward_seconds + own_update;
  const LowBitExchange exchange =
      exchange_of(Way::kZero, by_host, work, network);
  const double wire =
      by_host ? two_phase_by_host_seconds(network, exchange, {.turn = 0})
              : two_phase_seconds(network, exchange, {.turn = 0});
  const double encode = n * compute.encode;
  const double backward =
      work.backward_seconds + (work.has_spare_core ? 0 : encode);
  return backwards_seconds(work) +
         std::max(backward, wire / 2 + work.backward_seconds * kLastPart) +
         n * compute.serve + std::max(wire / 2, own_update) +
         n * compute.update;
}

// Ten cards per factor of ten, and the one that is there, from the fastest on.
std::vector<double> cards_to_try(double gbps) {
  constexpr double kMost = 1e3;  // Gbit/s
  constexpr int kFactorsOfTen = 6, kPerFactor = 10;
  std::vector<double> cards{gbps};
  for (int i = 0; i <= kFactorsOfTen * kPerFactor; ++i)
    cards.push_back(kMost *
                    std::pow(10.0, -static_cast<double>(i) / kPerFactor));
  std::sort(cards.rbegin(), cards.rend());
  return cards;
}

// The gain may rise and fall with the card: a scan finds the fastest card on
// which there is one, and halving where it ends.
double break_even(Way way, bool by_host, const Workload& work,
                  const Network& network, const Compute& compute) {
  if (way == Way::kExact || network.ranks == 1) return 0;
  const auto is_faster = [&](double gbps) {
    Network other = network;
    other.gbps = gbps;
    return step_seconds(way, by_host, work, other, compute) <
           exact_seconds(by_host, work, other, compute);
  };
  const std::vector<double> cards = cards_to_try(network.gbps);
  const auto found = std::find_if(cards.begin(), cards.end(), is_faster);
  if (found == cards.end()) return 0;
  if (found == cards.begin()) return std::numeric_limits<double>::infinity();
  double least = std::log(*found), most = std::log(*(found - 1));
  for (int halving = 0; halving < 50; ++halving) {
    const double middle = (least + most) / 2;
    (is_faster(std::exp(middle)) ? least : most) = middle;
  }
  return std::exp(most);
}

}  // namespace

std::string_view to_string(Way way) noexcept {
  switch (way) {
    case Way::kExact:
      return "exact";
    case Way::kOnebitAdam:
      return "onebit_adam";
    case Way::kZeroOneAdam:
      return "zero_one_adam";
    case Way::kZero:
      return "zero 4/4";
    case Way::kLean:
      return "lean";
  }
  return "unknown";
}

void Network::validate() const {
  require(ranks >= 1, "ranks", ">= 1", ranks);
  require(ranks_per_host >= 1 && ranks % ranks_per_host == 0, "ranks_per_host",
          fmt::format("a divisor of {} ranks", ranks), ranks_per_host);
  const auto positive = [](double value, const char* name) {
    require(std::isfinite(value) && value > 0, name, "finite and above 0",
            value);
  };
  const auto not_negative = [](double value, const char* name) {
    require(std::isfinite(value) && value >= 0, name, "finite and >= 0", value);
  };
  positive(gbps, "gbps");
  positive(inner_bytes_per_second, "inner_bytes_per_second");
  not_negative(latency_seconds, "latency_seconds");
  not_negative(message_seconds, "message_seconds");
  not_negative(inner_latency_seconds, "inner_latency_seconds");
  not_negative(inner_message_seconds, "inner_message_seconds");
}

void Workload::validate() const {
  const auto not_negative = [](double value, const char* name) {
    require(std::isfinite(value) && value >= 0, name, "finite and >= 0", value);
  };
  require(std::isfinite(parameters) && parameters >= 1, "parameters", ">= 1",
          parameters);
  require(dtype == DType::kFloat32 || dtype == DType::kFloat16 ||
              dtype == DType::kBFloat16,
          "dtype", "fp32, fp16 or bf16", to_string(dtype));
  not_negative(forward_seconds, "forward_seconds");
  not_negative(backward_seconds, "backward_seconds");
  not_negative(earlier_seconds, "earlier_seconds");
  not_negative(bucket_elements, "bucket_elements");
  require(steps_per_sync >= 1, "steps_per_sync", ">= 1", steps_per_sync);
}

double overlapped_step_seconds(const Workload& work, const Compute& compute,
                               double exchange_seconds) {
  return backwards_seconds(work) +
         std::max(work.backward_seconds,
                  exchange_seconds + work.backward_seconds * kLastPart) +
         work.parameters * compute.exact_update;
}

double step_seconds(Way way, bool by_host, const Workload& work,
                    const Network& network, const Compute& compute) {
  switch (way) {
    case Way::kExact:
      return exact_seconds(by_host, work, network, compute);
    case Way::kZeroOneAdam:
      return zero_one_seconds(by_host, work, network, compute);
    case Way::kZero:
      return zero_seconds(by_host, work, network, compute);
    default:
      return onebit_seconds(way, by_host, work, network, compute);
  }
}

Prediction predict(Way way, bool by_host, const Workload& work,
                   const Network& network, const Compute& compute) {
  network.validate();
  work.validate();
  require(!by_host || has_hosts(network), "by_host",
          "false without several hosts of several ranks each", by_host);
  require(!by_host || can_go_by_host(way), "by_host",
          "false with lean_onebit_adam, which exchanges flat", by_host);
  return {
      .way = way,
      .is_by_host = by_host,
      .step_seconds = step_seconds(way, by_host, work, network, compute),
      .traffic = traffic_of(way, by_host, work, network),
      .memory = memory_of(way, by_host, work, network),
      .break_even_gbps = break_even(way, by_host, work, network, compute),
      .steps_per_exchange = way == Way::kZeroOneAdam ? work.steps_per_sync : 1};
}

std::vector<Prediction> plan(const Workload& work, const Network& network,
                             const Compute& compute) {
  std::vector<Prediction> all;
  for (int i = 0; i < kNumWays; ++i) {
    const Way way = static_cast<Way>(i);
    all.push_back(predict(way, false, work, network, compute));
    if (has_hosts(network) && can_go_by_host(way))
      all.push_back(predict(way, true, work, network, compute));
  }
  return all;
}

}  // namespace thinwire::engine
