// SPDX-License-Identifier: Apache-2.0
#include "plan/collectives.h"

#include <algorithm>
#include <compare>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

namespace thinwire::plan {

namespace {

comm::Hosts hosts_of(const Network& network) {
  comm::Hosts hosts{.size = network.hosts(),
                    .ranks_per_host = network.ranks_per_host};
  if (hosts.is_flat()) return hosts;
  hosts.ranks.resize(static_cast<std::size_t>(network.ranks));
  std::iota(hosts.ranks.begin(), hosts.ranks.end(), 0);
  return hosts;
}

}  // namespace

MeanTraffic::MeanTraffic(bool by_host, const Network& network)
    : by_host_(by_host),
      on_host_(static_cast<std::size_t>(network.ranks_per_host)),
      rank_(std::make_shared<comm::RankRoutes>(hosts_of(network), by_host)) {}

MeanTraffic MeanTraffic::anew() const {
  MeanTraffic same = *this;
  same.sum_ = {};
  return same;
}

// Groups ranks with equal costs. Without steps, ranks are alike if the pieces
// of the rank, of its host, and of all ranks with its local number are equal.
// In steps, a rank sends the pieces of the ranks after it. Neighbours count as
// alike if there are very many ranks.
void MeanTraffic::add(std::span<const Range> pieces, const CostOfRank& cost,
                      double gathered_bytes) {
  // Limits the number of groups, because the cost of asking one rank grows with
  // the number of ranks.
  const std::size_t most_groups = std::clamp((std::size_t{1} << 21) / ranks(),
                                             std::size_t{8}, std::size_t{512});
  const std::size_t near = (ranks() + most_groups - 1) / most_groups;
  const bool are_equal = std::ranges::all_of(
      pieces, [&](Range piece) { return piece.size == pieces[0].size; });
  const bool takes_steps =
      gathered_bytes <= 2 * static_cast<double>(comm::kSmallBytes * local());
  struct Total {
    std::size_t size = 0, filled = 0;
    auto operator<=>(const Total&) const = default;
  };
  std::vector<Total> of_hosts(pieces.size() / on_host_), of_places(local());
  for (std::size_t r = 0; r < pieces.size(); ++r)
    for (Total* const total :
         {&of_hosts[r / on_host_], &of_places[r % local()]}) {
      total->size += pieces[r].size;
      total->filled += pieces[r].size != 0 ? 1 : 0;
    }
  std::map<std::tuple<std::size_t, std::size_t, std::size_t, Total, Total>,
           std::pair<std::size_t, double>>
      alike;
  for (std::size_t r = 0; r < pieces.size(); ++r)
    ++alike
          .try_emplace(
              {takes_steps ? r % on_host_ : 0,
               takes_steps && !are_equal ? r / near : 0, pieces[r].size,
               of_hosts[r / on_host_], of_places[r % local()]},
              r, 0)
          .first->second.second;
  Traffic all;  // of all ranks
  for (const auto& [unused, same] : alike) {
    const std::size_t host = same.first / on_host_, l = same.first % on_host_;
    rank_->become(by_host_ ? l * rank_->workers + host : same.first);
    const comm::Cost one = cost(*rank_);
    all.bytes += same.second * static_cast<double>(one.bytes_sent());
    all.bytes_between_hosts +=
        same.second * static_cast<double>(one.between_hosts.bytes);
    all.messages += same.second * static_cast<double>(one.messages());
    all.rounds = std::max(all.rounds, static_cast<double>(one.rounds));
  }
  const auto count = static_cast<double>(ranks());
  sum_.bytes += all.bytes / count;
  sum_.bytes_between_hosts += all.bytes_between_hosts / count;
  sum_.messages += all.messages / count;
  sum_.rounds += all.rounds;
}

void MeanTraffic::add(const MeanTraffic& more, double times) {
  sum_.bytes += more.sum_.bytes * times;
  sum_.bytes_between_hosts += more.sum_.bytes_between_hosts * times;
  sum_.messages += more.sum_.messages * times;
  sum_.rounds += more.sum_.rounds * times;
}

}  // namespace thinwire::plan
