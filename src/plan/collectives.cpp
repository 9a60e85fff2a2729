// SPDX-License-Identifier: Apache-2.0
#include "plan/collectives.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <utility>

#include "thinwire/comm/hosts.h"

namespace thinwire::plan {

namespace {

comm::Hosts hosts_of(const Network& network, std::size_t rank) {
  const int local = network.ranks_per_host;
  const int index = static_cast<int>(rank) / local;
  comm::Hosts hosts{.size = network.hosts(),
                    .index = index,
                    .ranks_per_host = local,
                    .local_rank = static_cast<int>(rank) - index * local};
  if (hosts.is_flat()) return hosts;
  hosts.ranks.resize(static_cast<std::size_t>(network.ranks));
  std::iota(hosts.ranks.begin(), hosts.ranks.end(), 0);
  return hosts;
}

}  // namespace

MeanTraffic::MeanTraffic(bool by_host, const Network& network)
    : by_host_(by_host),
      network_(network),
      rank_at_place_(
          comm::ranks_by_place(by_host ? hosts_of(network, 0)
                                       : comm::Hosts{.size = network.ranks})) {}

std::size_t MeanTraffic::ranks() const noexcept {
  return rank_at_place_.size();
}

std::size_t MeanTraffic::local() const noexcept {
  return by_host_ ? static_cast<std::size_t>(network_.ranks_per_host) : 1;
}

// Ranks are alike if they have one place on their hosts, and they and their
// hosts have as much.
void MeanTraffic::add(std::span<const Range> pieces, const CostOfRank& cost,
                      double gathered_bytes) {
  const auto on_host = static_cast<std::size_t>(network_.ranks_per_host);
  const bool are_equal = std::ranges::all_of(
      pieces, [&](Range piece) { return piece.size == pieces[0].size; });
  const bool takes_steps =
      !are_equal &&
      gathered_bytes <= 2 * static_cast<double>(comm::kSmallBytes * local());
  std::map<std::array<std::size_t, 4>, std::pair<std::size_t, double>> alike;
  for (std::size_t host = 0; host < pieces.size(); host += on_host) {
    std::size_t total = 0, filled = 0;
    for (const Range& piece : pieces.subspan(host, on_host)) {
      total += piece.size;
      filled += piece.size != 0 ? 1 : 0;
    }
    for (std::size_t r = host; r < host + on_host; ++r)
      ++alike
            .try_emplace(
                {takes_steps ? r : r - host, pieces[r].size, total, filled}, r,
                0)
            .first->second.second;
  }
  double rounds = 0;
  for (const auto& [unused, same] : alike) {
    const comm::Cost one = cost({hosts_of(network_, same.first), by_host_});
    const double share = same.second / static_cast<double>(ranks());
    sum_.bytes += share * static_cast<double>(one.bytes_sent());
    sum_.bytes_between_hosts +=
        share * static_cast<double>(one.between_hosts.bytes);
    sum_.messages += share * static_cast<double>(one.messages());
    rounds = std::max(rounds, static_cast<double>(one.rounds));
  }
  sum_.rounds += rounds;
}

void MeanTraffic::add(const MeanTraffic& more, double times) {
  sum_.bytes += more.sum_.bytes * times;
  sum_.bytes_between_hosts += more.sum_.bytes_between_hosts * times;
  sum_.messages += more.sum_.messages * times;
  sum_.rounds += more.sum_.rounds * times;
}

}  // namespace thinwire::plan
