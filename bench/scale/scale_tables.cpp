// SPDX-License-Identifier: Apache-2.0
// Prints how the exchange of one step grows with ranks, link and bucket size,
// for described clusters, by the formulas of plan/planner.h.
#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "thinwire/exchange/bucket_rule.h"
#include "thinwire/plan/planner.h"

namespace {

using namespace thinwire;
using plan::Compute;
using plan::LowBitExchange;
using plan::Network;
using plan::Way;
using plan::Workload;
using Row = std::vector<std::string>;

constexpr double kModel = 340e6;  // in parameters
constexpr double kHalf = 2;       // in bytes per parameter
constexpr double kMi = 1 << 20;

void print(const std::string& title, const Row& header,
           const std::vector<Row>& rows) {
  const auto line = [](const Row& cells) {
    std::string text = "|";
    for (const std::string& cell : cells) text += " " + cell + " |";
    return text + "\n";
  };
  std::cout << "\n" << title << "\n\n" << line(header) << "|";
  for (std::size_t i = 0; i < header.size(); ++i) std::cout << "---|";
  std::cout << "\n";
  for (const Row& row : rows) std::cout << line(row);
}

std::string ms(double seconds) {
  const double value = seconds * 1e3;
  return fmt::format("{:.{}f}", value, value < 10 ? 1 : 0);
}

std::string times(double a, double b, int digits = 1) {
  return fmt::format("{:.{}f}", a / b, digits);
}

double rule(double elements, int ranks, int bits = 1) {
  return static_cast<double>(
      exchange::bucket_rule(static_cast<std::size_t>(elements), ranks, bits));
}

LowBitExchange exchange(double bucket, int bits = 1) {
  return {.elements = kModel,
          .bucket_elements = bucket,
          .bits_up = bits,
          .bits_down = bits};
}

double flat(const Network& network, int bits) {
  return plan::two_phase_seconds(
      network, exchange(rule(kModel, network.ranks, bits), bits));
}

double by_host(const Network& network, int bits) {
  return plan::two_phase_by_host_seconds(
      network, exchange(rule(kModel, network.ranks, bits), bits));
}

// Returns a bucket with messages of 64 KiB to every peer, and at least 2 MiB.
double direct_bucket(const Network& network) {
  return std::max(2 * kMi, network.ranks * 65536.0);
}

void print_buckets() {
  std::vector<Row> rows;
  for (const int ranks : {8, 64, 256, 1024})
    for (const auto& [bucket, name] :
         {std::pair(kMi, "fixed"), std::pair(4 * kMi, ""),
          std::pair(rule(kModel, ranks), "rule"), std::pair(128 * kMi, "")}) {
      const Workload work{.parameters = kModel, .bucket_elements = bucket};
      const plan::Traffic traffic =
          plan::traffic_of(Way::kOnebitAdam, false, work, {.ranks = ranks});
      const double buckets = std::ceil(kModel / bucket);
      Row row{std::to_string(ranks),
              fmt::format("{:.1f} Mi {}", bucket / kMi, name),
              fmt::format("{:.0f}", bucket * 132 / 1024 / ranks),
              fmt::format("{:.0f}", buckets),
              fmt::format("{:.0f}", traffic.messages)};
      for (const double gbps : {1., 10., 25., 100.})
        row.push_back(ms(plan::two_phase_seconds({.ranks = ranks, .gbps = gbps},
                                                 exchange(bucket))));
      rows.push_back(std::move(row));
    }
  print("1 bit, 340 M parameters, one rank per host: ms of the exchange alone",
        {"W", "bucket", "bytes per message", "buckets",
         "messages per rank and step", "1 Gbit/s", "10", "25", "100"},
        rows);
}

void print_exchanges(int per_host) {
  // Sums of 16-bit values travel between hosts in fp32.
  const double widening = per_host == 1 ? 1 : 4 / kHalf;
  std::vector<Row> rows;
  for (const int ranks : {per_host == 1 ? 8 : 16, 64, 256, 1024})
    for (const double gbps : {1., 10., 25., 100.}) {
      const Network network{
          .ranks = ranks, .ranks_per_host = per_host, .gbps = gbps};
      const double ring = plan::ring_seconds(network, kHalf * kModel);
      const double one = flat(network, 1), hosts = by_host(network, 1);
      rows.push_back({std::to_string(ranks), fmt::format("{:g}", gbps),
                      ms(ring),
                      ms(plan::direct_seconds(network, kHalf * kModel,
                                              direct_bucket(network))),
                      ms(plan::direct_by_host_seconds(network, kHalf * kModel,
                                                      16 * kMi, widening)),
                      ms(flat(network, 4)), ms(by_host(network, 4)), ms(one),
                      ms(hosts), times(ring, one), times(ring, hosts)});
    }
  print(fmt::format("Ranks per host: {}, 16 bits: ms", per_host),
        {"W", "Gbit/s", "ring or tree", "direct", "direct by host",
         "ZeRO 4/4 flat", "ZeRO 4/4 by host", "1 bit flat", "1 bit by host",
         "flat, times", "by host, times"},
        rows);
}

// GPUs, whose kernels are assumed. Adam moves 28 bytes, and an update from
// records 12.125.
constexpr Compute kGpu{.encode = 13e-12,
                       .serve = 3e-12,
                       .update = 13e-12,
                       .norm = 4e-12,
                       .exact_update = 13e-12 * 28 / 12.125};

void print_steps() {
  std::vector<Row> rows;
  for (const int backwards : {1, 4})
    for (const double gbps : {1., 5., 10., 25., 100.}) {
      const Network network{.ranks = 16, .gbps = gbps};
      // All backwards except the last are counted as forward.
      const Workload work{.parameters = kModel,
                          .forward_seconds = backwards == 1 ? .036 : .252,
                          .backward_seconds = .061};
      const double exact = plan::overlapped_step_seconds(
          work, kGpu, plan::ring_seconds(network, kHalf * kModel));
      const double one =
          plan::step_seconds(Way::kOnebitAdam, false, work, network, kGpu);
      rows.push_back({std::to_string(backwards), fmt::format("{:g}", gbps),
                      ms(exact), ms(one), times(exact, one, 2)});
    }
  print("Whole steps of 16 GPUs, 16 samples each: ms",
        {"backwards", "Gbit/s", "exact", "1 bit", "exact / 1 bit"}, rows);
}

}  // namespace

int main() {
  print_buckets();
  for (const int per_host : {1, 8}) print_exchanges(per_host);
  print_steps();
  return 0;
}
