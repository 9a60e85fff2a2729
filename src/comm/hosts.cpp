// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/hosts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/host_name.h"
#include "comm/hosts_of.h"
#include "comm/ranks_of_hosts.h"
#include "core/require.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/checksum.h"
#include "thinwire/core/env.h"
#include "thinwire/core/log.h"

namespace thinwire::comm {
namespace {

constexpr std::string_view kRanksPerHost =
    "ranks_per_host (or THINWIRE_RANKS_PER_HOST)";

// Returns the ranks of every host, with hosts in the order of their lowest
// rank.
std::vector<std::vector<int>> together(std::span<const OnHost> all) {
  std::vector<std::vector<int>> hosts;
  std::vector<std::int64_t> names;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto at = static_cast<std::size_t>(
        std::find(names.begin(), names.end(), all[rank].host) - names.begin());
    if (at == names.size()) {
      names.push_back(all[rank].host);
      hosts.emplace_back();
    }
    hosts[at].push_back(static_cast<int>(rank));
  }
  return hosts;
}

std::vector<std::vector<int>> told(std::span<const OnHost> all) {
  const std::int64_t per_host = all.front().ranks_per_host;
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].ranks_per_host != per_host)
      reject(
          fmt::format("ranks_per_host must be the same on all ranks, got {} "
                      "on rank 0 and {} on rank {}",
                      per_host, all[rank].ranks_per_host, rank));
  }
  const auto ranks = static_cast<std::int64_t>(all.size());
  require(ranks % per_host == 0, kRanksPerHost,
          fmt::format("a divisor of the number of ranks, {}", ranks), per_host);
  std::vector<std::vector<int>> hosts(
      static_cast<std::size_t>(ranks / per_host));
  for (int rank = 0; rank < static_cast<int>(ranks); ++rank)
    hosts[static_cast<std::size_t>(rank / per_host)].push_back(rank);
  return hosts;
}

// Describes how the launchers' numbers contradict the detected hosts, or
// returns "" if they agree. Containers on one machine share its boot id, but
// each has its own launcher.
std::string contradiction(const std::vector<std::vector<int>>& hosts,
                          std::span<const OnHost> all,
                          const std::string& variable) {
  if (all.size() == 1) return {};
  for (const std::vector<int>& host : hosts) {
    for (const int rank : host) {
      const std::int64_t said = all[static_cast<std::size_t>(rank)].announced;
      if (said != 0 && said != static_cast<std::int64_t>(host.size()))
        return fmt::format(
            "{} ranks have the boot id or host name of rank {}, but {} = {}",
            host.size(), rank,
            variable.empty() ? "its launcher's number" : variable, said);
    }
  }
  return {};
}

Hosts hosts_of_rank(const std::vector<std::vector<int>>& hosts, int rank,
                    WhyFlat& why) {
  const std::size_t per_host = hosts.front().size();
  const auto ranks = std::accumulate(
      hosts.begin(), hosts.end(), std::size_t{0},
      [](std::size_t sum, const auto& host) { return sum + host.size(); });
  Hosts flat{.size = static_cast<int>(ranks), .index = rank};
  if (ranks == 1) return flat;
  if (hosts.size() == 1) {
    why = {WhyFlat::Reason::kOneHost,
           fmt::format("all {} ranks are on one host", ranks)};
    return flat;
  }
  std::vector<std::size_t> sizes;
  for (const auto& host : hosts) sizes.push_back(host.size());
  if (std::any_of(sizes.begin(), sizes.end(),
                  [&](std::size_t size) { return size != per_host; })) {
    why = {WhyFlat::Reason::kUnequalHosts,
           fmt::format("hosts hold unequal numbers of ranks: {}",
                       fmt::join(sizes, ", "))};
    return flat;
  }
  if (per_host == 1) return flat;
  Hosts result{.size = static_cast<int>(hosts.size()),
               .ranks_per_host = static_cast<int>(per_host)};
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    for (std::size_t local = 0; local < per_host; ++local) {
      result.ranks.push_back(hosts[host][local]);
      if (hosts[host][local] != rank) continue;
      result.index = static_cast<int>(host);
      result.local_rank = static_cast<int>(local);
    }
  }
  return result;
}

// Puts every rank on a separate host.
std::vector<std::vector<int>> apart(std::size_t ranks) {
  std::vector<std::vector<int>> hosts;
  for (int rank = 0; rank < static_cast<int>(ranks); ++rank)
    hosts.push_back({rank});
  return hosts;
}

// Groups the ranks as the variables specify or, if none is set, as detected.
// Sets `why` only if the detected hosts contradict the launchers.
std::vector<std::vector<int>> grouped(std::span<const OnHost> all, int rank,
                                      const std::string& variable,
                                      WhyFlat& why) {
  const auto found = together(all);
  const bool is_told =
      std::any_of(all.begin(), all.end(),
                  [](const OnHost& one) { return one.ranks_per_host != 0; });
  if (!is_told) {
    std::string text = contradiction(found, all, variable);
    if (text.empty()) return found;
    if (rank == 0)
      log(LogLevel::kWarning,
          fmt::format("every rank counts as a host of its own: {}; "
                      "THINWIRE_RANKS_PER_HOST sets how many share a network "
                      "card",
                      text));
    why = {WhyFlat::Reason::kContradiction, std::move(text)};
    return apart(all.size());
  }
  const auto hosts = told(all);
  if (rank == 0 && hosts != found)
    log(LogLevel::kInfo,
        fmt::format("ranks_per_host = {} makes {} hosts; by boot id or host "
                    "name they would be {}",
                    hosts.front().size(), hosts.size(), found.size()));
  return hosts;
}

// Gathers every rank's knowledge of its host. `variable` receives the name of
// the variable behind `announced`. Collective.
std::vector<OnHost> gather_on_host(Communicator& comm,
                                   const HostOptions& options,
                                   std::string& variable) {
  OnHost own;
  require_everywhere(comm, [&] {
    require(options.ranks_per_host >= 0, "HostOptions.ranks_per_host", ">= 0",
            options.ranks_per_host);
    own.ranks_per_host = options.ranks_per_host > 0 ? options.ranks_per_host
                                                    : env::ranks_per_host();
    own.host = machine_id();
    // Local ranks ignore the launcher, because they are threads of one of its
    // processes.
    if (comm.backend() == "local") return;
    if (const auto said = env::launched_on_host(comm.size())) {
      own.announced = said->value;
      variable = said->variable;
    }
  });
  constexpr std::size_t kWords = sizeof(OnHost) / sizeof(std::int64_t);
  const std::array<std::int64_t, kWords> words{own.host, own.ranks_per_host,
                                               own.announced};
  std::vector<std::int64_t> gathered(kWords *
                                     static_cast<std::size_t>(comm.size()));
  comm.all_gather(words, gathered);
  std::vector<OnHost> all;
  for (std::size_t at = 0; at < gathered.size(); at += kWords)
    all.push_back({gathered[at], gathered[at + 1], gathered[at + 2]});
  return all;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

// Containers on one machine share its boot id but differ in their host names.
std::int64_t machine_id() {
  std::string id;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  if (!std::getline(file, id) || id.empty()) id = host_name();
  return static_cast<std::int64_t>(checksum(id));
}

Hosts hosts_of(std::span<const OnHost> all, int rank,
               const std::string& variable, WhyFlat& why) {
  why = {};
  const auto hosts = grouped(all, rank, variable, why);
  return hosts_of_rank(hosts, rank, why);
}

std::vector<int> ranks_by_place(const Hosts& hosts) {
  std::vector<int> ranks(static_cast<std::size_t>(hosts.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (hosts.is_flat()) return ranks;
  ranks.clear();
  for (int local = 0; local < hosts.ranks_per_host; ++local)
    for (int host = 0; host < hosts.size; ++host)
      ranks.push_back(hosts.ranks[static_cast<std::size_t>(
          host * hosts.ranks_per_host + local)]);
  return ranks;
}

Hosts find_hosts(Communicator& comm, const HostOptions& options, WhyFlat* why) {
  std::string variable;
  const auto all = gather_on_host(comm, options, variable);
  WhyFlat reason;
  Hosts hosts;
  require_everywhere(
      comm, [&] { hosts = hosts_of(all, comm.rank(), variable, reason); });
  if (why != nullptr) *why = std::move(reason);
  return hosts;
}

std::vector<std::vector<int>> ranks_of_hosts(Communicator& comm,
                                             const HostOptions& options) {
  std::string variable;
  const auto all = gather_on_host(comm, options, variable);
  std::vector<std::vector<int>> hosts;
  WhyFlat why;
  require_everywhere(comm,
                     [&] { hosts = grouped(all, comm.rank(), variable, why); });
  return hosts;
}

}  // namespace thinwire::comm
