// SPDX-License-Identifier: Apache-2.0
#include "engine/hierarchy.h"

#include <fmt/format.h>

#include <string>

#include "thinwire/comm/hosts.h"
#include "thinwire/core/error.h"
#include "thinwire/core/log.h"

namespace thinwire::engine {

using config::Hierarchy;

namespace {

// Returns whether the exchange is flat regardless of the hosts. DeepSpeed's
// sums are flat.
bool is_flat(const config::Config& config, int ranks) {
  if (config.comm.hierarchy == Hierarchy::kByHost) return false;
  return config.comm.hierarchy == Hierarchy::kFlat || ranks == 1 ||
         config.semantics == config::Semantics::kDeepSpeed;
}

}  // namespace

std::unique_ptr<comm::Communicator> by_host(comm::Communicator& comm,
                                            const config::Config& config) {
  if (is_flat(config, comm.size())) return nullptr;
  comm::WhyFlat why;
  const comm::Hosts hosts = comm::find_hosts(
      comm, {.ranks_per_host = config.comm.ranks_per_host}, &why);
  const bool shares_hosts = !hosts.is_flat();
  if (shares_hosts) {
    try {
      auto grouped = comm.by_host(hosts);
      if (comm.rank() == 0)
        log(LogLevel::kInfo,
            fmt::format("hierarchical exchange: {} hosts of {} ranks",
                        hosts.size, hosts.ranks_per_host));
      return grouped;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
      why.text =
          fmt::format("the transport '{}' has no groups", comm.backend());
    }
  }
  if (config.comm.hierarchy == Hierarchy::kByHost)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "comm.hierarchy must be auto or flat, got by_host: "
            "{}",
            why.text.empty() ? "every rank has a host of its own" : why.text));
  // Logs nothing if all ranks share one host, which is usually intended.
  // find_hosts() has already warned of a contradiction.
  const bool is_unequal = why.reason == comm::WhyFlat::Reason::kUnequalHosts;
  if ((is_unequal || shares_hosts) && comm.rank() == 0)
    log(LogLevel::kInfo, "every rank exchanges with every other: " + why.text);
  return nullptr;
}

}  // namespace thinwire::engine
