// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "thinwire/comm/communicator.h"
#include "thinwire/plan/planner.h"

/// Measurements of machines and network for the planner. They take a second or
/// two with fast links. A figure is the slowest rank's median over rounds, so
/// all ranks get the same.
///
/// The spread of a figure is the distance between the quartiles of its rounds,
/// divided by their median. The widest spread of all ranks counts.
namespace thinwire::plan {

/// Largest spread of machines and a network that are not busy.
inline constexpr double kMostSpread = 0.2;

struct MeasureOptions {
  int rounds = 5;  ///< >= 1.
  /// Number of elements in each array, >= 1; the arrays must not fit into
  /// caches.
  std::size_t elements = std::size_t{1} << 22;
  /// Threads per rank, in [0, 1024]; 0 for THINWIRE_NUM_THREADS or, if unset,
  /// 1.
  int num_threads = 0;
  /// Bytes that a rank sends to all others together in the measurement of a
  /// link's rate; >= 1.
  std::size_t message_bytes = std::size_t{4} << 20;
};

/// Spreads of a Network's figures: of its rate, and of messages of 8 bytes and
/// of 1 KiB. A spread is 0 if its figure was not measured.
struct LinkSpread {
  double rate = 0;
  double latency = 0;
  double message = 0;
};

struct MeasuredNetwork : Network {
  LinkSpread spread{};
  LinkSpread inner_spread{};
};

struct MeasuredCompute : Compute {
  Compute spread{.turn = 0};  ///< Spread of each figure; turn has none.
};

/// Measures all-to-alls of 8 bytes and 1 KiB per peer, and of
/// MeasureOptions::message_bytes to all peers, between hosts and inside one,
/// all groups at once. Collective. `comm` is flat. If all ranks share a host,
/// ranks count as hosts, and their connection as the link. Figures that cannot
/// be measured here keep their defaults; a group of one rank measures nothing.
/// Rates refer to the payload.
[[nodiscard]] MeasuredNetwork measure_network(
    comm::Communicator& comm, const comm::Hosts& hosts,
    const MeasureOptions& options = {});

/// A machine and the load on its processors.
struct Processors {
  int cores = 1;    ///< Cores that its ranks may use.
  int ranks = 1;    ///< Ranks on the machine, however hosts are configured.
  int threads = 1;  ///< Computing threads of a rank; 0 with an accelerator.

  /// Returns whether each rank's communication has a core in addition to those
  /// that compute.
  [[nodiscard]] bool has_spare_core() const noexcept {
    return threads == 0 || cores >= ranks * (threads + 1);
  }
};

/// Returns the load of `ranks` ranks on this machine, whose cores are those in
/// the affinity mask. `threads` is in [0, 1024]; a negative number stands for
/// THINWIRE_NUM_THREADS or, if unset, for 1. Throws Error(kInvalidArgument).
/// Local.
[[nodiscard]] Processors processors_for(int ranks, int threads = -1);

/// Returns the machine with the fewest free cores. Its cores are those in the
/// affinity masks of any of its ranks. `threads` is as in processors_for(); if
/// the ranks of a machine differ, the largest number counts. Collective.
[[nodiscard]] Processors measure_processors(comm::Communicator& comm,
                                            int threads = -1);

/// Returns a line for people: "2 ranks of 1 thread on 2 cores: no spare
/// cores, so ...".
[[nodiscard]] std::string describe(const Processors& processors);

/// Measures the kernels of compressed and exact steps on all ranks at once, as
/// in a step. Collective.
[[nodiscard]] MeasuredCompute measure_compute(
    comm::Communicator& comm, const MeasureOptions& options = {});

/// Returns text for people, with the spread of each figure in brackets. The
/// last line is the warning of unstable(), if any.
[[nodiscard]] std::string describe(const MeasuredNetwork& network);
[[nodiscard]] std::string describe(const MeasuredCompute& compute);

/// Returns a line that names the figures with a spread above kMostSpread, or
/// "".
[[nodiscard]] std::string unstable(const MeasuredNetwork& network);
[[nodiscard]] std::string unstable(const MeasuredCompute& compute);

}  // namespace thinwire::plan
