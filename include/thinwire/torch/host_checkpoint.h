// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/torch/host_bytes.h"

// Values that the ranks of a host exchange for checkpoints. Their leader saves
// the values of all.
namespace thinwire::torch {

/// Prefix of the names of values that a leader saves for other ranks of its
/// host.
inline const std::string kOfHost = "thinwire/host/";

/// Returns the own values of a host's ranks as one state. The leader comes
/// first, and its values keep their names. Names of the K-th rank's values
/// begin with "thinwire/host/K/". `own` has the bytes of each rank's state.
inline StateDict own_of_host(const std::vector<int>& ranks,
                             const std::vector<std::string>& own) {
  StateDict all;
  for (std::size_t k = 0; k < ranks.size(); ++k) {
    const std::string number = std::to_string(k);
    HostBytes bytes(own[k]);
    StateDict of_rank;
    bytes(of_rank);
    all.put_integer(kOfHost + "rank " + number, ranks[k]);
    all.put_all(k == 0 ? "" : kOfHost + number + "/", of_rank);
  }
  return all;
}

/// Distributes the own values that leaders have saved for their hosts.
/// Afterwards own_of_ranks has the values of every rank, and extra.own those of
/// `rank`.
inline void divide_own(checkpoint::LoadReport& report, int rank) {
  std::map<std::int64_t, StateDict> of_ranks;
  for (const StateDict& saved : report.own_of_ranks) {
    const auto rank_of = [&](std::size_t k) {
      return kOfHost + "rank " + std::to_string(k);
    };
    StateDict own;
    for (const auto& [name, array] : saved.arrays())
      if (!name.starts_with(kOfHost)) own.put(name, array.view());
    for (const auto& [name, scalar] : saved.scalars())
      if (!name.starts_with(kOfHost)) own.put_scalar(name, scalar);
    const bool is_leader = saved.has_scalar(rank_of(0));
    of_ranks[is_leader ? saved.integer(rank_of(0))
                       : static_cast<std::int64_t>(of_ranks.size())] =
        std::move(own);
    for (std::size_t k = 1; saved.has_scalar(rank_of(k)); ++k)
      of_ranks[saved.integer(rank_of(k))] =
          saved.part(kOfHost + std::to_string(k) + "/");
  }
  report.own_of_ranks.clear();
  report.extra.own = StateDict();
  for (auto& [number, own] : of_ranks) {
    if (number == rank) report.extra.own.put_all("", own);
    report.own_of_ranks.push_back(std::move(own));
  }
}

/// List the fields of reports.
inline void list(HostBytes& bytes, checkpoint::SaveReport& report) {
  bytes(report.path, report.step, report.bytes, report.seconds,
        report.waited_seconds);
}
inline void list(HostBytes& bytes, checkpoint::LoadReport& report) {
  bytes(report.path, report.step, report.run, report.world, report.optimizer,
        report.precision, report.config, report.scalars, report.extra.common,
        report.own_of_ranks, report.notes, report.bytes, report.seconds);
}

}  // namespace thinwire::torch
