// SPDX-License-Identifier: Apache-2.0
#include "plan/collectives.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "comm/routes.h"
#include "plan/parts.h"
#include "thinwire/core/buffer.h"

namespace thinwire::plan {

namespace {

double total_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

Traffic operator+(const Traffic& a, const Traffic& b) {
  return {a.bytes + b.bytes, a.bytes_between_hosts + b.bytes_between_hosts,
          a.messages + b.messages, a.rounds + b.rounds};
}

Traffic operator*(const Traffic& a, double factor) {
  return {a.bytes * factor, a.bytes_between_hosts * factor, a.messages * factor,
          a.rounds * factor};
}

Pieces times(std::span<const double> pieces, double factor) {
  Pieces result(pieces.begin(), pieces.end());
  for (double& piece : result) piece *= factor;
  return result;
}

Pieces equal_pieces(double size, std::size_t ranks) {
  const double least = std::floor(size / static_cast<double>(ranks));
  const double longer = size - least * static_cast<double>(ranks);
  Pieces pieces(ranks, least);
  for (std::size_t r = 0; static_cast<double>(r) < longer; ++r) ++pieces[r];
  return pieces;
}

// ---- one group

// All ranks that send or receive a piece are alike.
void GroupTraffic::add_straight(double bytes, double messages, double rounds) {
  const double ranks = network_.ranks;
  const double sent = bytes * (ranks - 1) / ranks;
  sum_.bytes += sent;
  sum_.bytes_between_hosts +=
      sent * (ranks - network_.ranks_per_host) / (ranks - 1);
  sum_.messages += messages * (ranks - 1) / ranks;
  sum_.rounds += rounds;
}

void GroupTraffic::all_to_all(std::span<const double> bytes) {
  const auto filled =
      static_cast<double>(bytes.size() - static_cast<std::size_t>(std::count(
                                             bytes.begin(), bytes.end(), 0.0)));
  if (network_.ranks == 1 || filled == 0) return;
  add_straight(total_of(bytes), filled, 1);
}

// Bruck's steps, as comm/routes.h has them.
void GroupTraffic::all_gather(std::span<const double> bytes) {
  const std::size_t ranks = bytes.size();
  if (network_.ranks <= comm::kFewRanks ||
      total_of(bytes) > static_cast<double>(comm::kSmallBytes))
    return all_to_all(bytes);
  const auto on_host = static_cast<std::size_t>(network_.ranks_per_host);
  for (std::size_t reach = 1; reach < ranks; reach *= 2) {
    const std::size_t count = std::min(reach, ranks - reach);
    Traffic step;
    double held = total_of(bytes.first(count));
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::size_t to = (r + ranks - reach) % ranks;
      step.bytes += held;
      if (to / on_host != r / on_host) step.bytes_between_hosts += held;
      if (held > 0) ++step.messages;
      held += bytes[(r + count) % ranks] - bytes[r];
    }
    sum_ = sum_ + step * (1 / static_cast<double>(ranks));
    if (step.messages > 0) ++sum_.rounds;
  }
}

// Blocks of comm/routes.h.
void GroupTraffic::reduce(std::span<const double> elements,
                          double element_bytes) {
  constexpr auto kScratch = static_cast<double>(comm::kScratchBytes);
  constexpr auto kAlignment = static_cast<double>(Buffer::kAlignment);
  if (network_.ranks == 1 || elements.empty()) return;
  const double longest = *std::max_element(elements.begin(), elements.end());
  const double slot = std::min(std::floor(kScratch / network_.ranks),
                               longest * element_bytes + kAlignment - 1);
  const double stride =
      std::max(std::floor(slot / kAlignment), 1.0) * kAlignment;
  const double part = std::floor(stride / element_bytes);
  double parts = 0;
  for (const double piece : elements) parts += std::ceil(piece / part);
  add_straight(total_of(elements) * element_bytes, parts,
               std::ceil(longest / part));
}

// ---- hosts

HostTraffic::HostTraffic(bool by_host, const Network& network)
    : whole_(network),
      inside_(inside_of(network)),
      outer_(by_host ? between_of(network) : network) {
  if (!by_host) inside_.ranks = inside_.ranks_per_host = 1;
}

std::size_t HostTraffic::ranks() const noexcept {
  return static_cast<std::size_t>(whole_.ranks);
}

HostTraffic HostTraffic::anew() const {
  HostTraffic same = *this;
  same.sum_ = {};
  return same;
}

// Inside a host, local ranks have all pieces of their group.
void HostTraffic::within(std::span<const double> pieces,
                         const Collective& collective) {
  if (!by_host()) return;
  const auto hosts = static_cast<std::size_t>(outer_.ranks);
  Pieces joined;
  for (std::size_t at = 0; at < pieces.size(); at += hosts)
    joined.push_back(total_of(pieces.subspan(at, hosts)));
  inside([&](GroupTraffic& group) { collective(group, joined); });
}

void HostTraffic::across(std::span<const double> pieces,
                         const Collective& collective) {
  const auto members = static_cast<std::size_t>(outer_.ranks);
  Traffic all;
  double rounds = 0;
  for (std::size_t at = 0; at < pieces.size(); at += members) {
    GroupTraffic group(outer_);
    collective(group, pieces.subspan(at, members));
    all = all + group.sum();
    rounds = std::max(rounds, group.sum().rounds);
  }
  all = all * (1.0 / inside_.ranks);
  all.rounds = rounds;
  sum_ = sum_ + all;
}

// Hierarchical sums travel in fp32.
void HostTraffic::reduce_scatter(std::span<const double> elements,
                                 double element_bytes) {
  within(elements, [&](GroupTraffic& group, std::span<const double> pieces) {
    group.reduce(pieces, element_bytes);
  });
  across(elements, [&](GroupTraffic& group, std::span<const double> pieces) {
    group.reduce(pieces, by_host() ? sizeof(float) : element_bytes);
  });
}

bool HostTraffic::goes_straight(std::span<const double> bytes) const {
  return !by_host() ||
         total_of(bytes) <= static_cast<double>(comm::kSmallBytes);
}

void HostTraffic::straight(std::span<const double> bytes) {
  GroupTraffic group(whole_);
  group.all_gather(bytes);
  sum_ = sum_ + group.sum();
}

void HostTraffic::all_gather(std::span<const double> bytes) {
  if (goes_straight(bytes)) return straight(bytes);
  across(bytes, &GroupTraffic::all_to_all);
  within(bytes, &GroupTraffic::all_to_all);
}

// A local rank's pieces of the hosts are not neighbours, so they circulate
// inside the host one host at a time.
void HostTraffic::all_gather_by_rank(std::span<const double> bytes) {
  if (goes_straight(bytes)) return straight(bytes);
  const auto local = static_cast<std::size_t>(inside_.ranks);
  Pieces by_place;
  for (std::size_t l = 0; l < local; ++l)
    for (std::size_t r = l; r < bytes.size(); r += local)
      by_place.push_back(bytes[r]);
  across(by_place, &GroupTraffic::all_to_all);
  GroupTraffic inside(inside_);
  for (std::size_t r = 0; r < bytes.size(); r += local)
    inside.all_to_all(bytes.subspan(r, local));
  sum_ = sum_ + inside.sum();
}

void HostTraffic::add(const HostTraffic& more, double times) {
  sum_ = sum_ + more.sum_ * times;
}

}  // namespace thinwire::plan
