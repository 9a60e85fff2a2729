// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "thinwire/comm/communicator.h"
#include "thinwire/plan/planner.h"

/// What a planner has to know of these machines, measured: a second or two
/// where links are fast. Medians over rounds; of the ranks the slowest counts,
/// so all get the same.
///
/// The spread of a figure is the distance between the quartiles of its rounds,
/// divided by their median; of the ranks the widest counts.
namespace thinwire::plan {

/// A spread above this means that the machines or their network were busy.
inline constexpr double kMostSpread = 0.2;

struct MeasureOptions {
  int rounds = 5;  ///< >= 1.
  /// Elements of the arrays that are computed on, >= 1: more than caches hold.
  std::size_t elements = std::size_t{1} << 22;
  /// Of the ranks, in [0, 1024]; 0: THINWIRE_NUM_THREADS, else 1.
  int num_threads = 0;
  /// Of one message, in the measurement of a link's rate; >= 1.
  std::size_t message_bytes = std::size_t{4} << 20;
};

/// Spreads of a Network's figures: of its rate, of 8 bytes and of 1 KiB,
/// between hosts and inside one; 0 if they were not measured.
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
  Compute spread{.turn = 0};  ///< For each figure; turn is not measured.
};

/// Collective: all-to-alls of 8 bytes, 1 KiB and 4 MiB per peer, between hosts
/// and inside of one, all groups at once. `comm` is flat. Where all ranks share
/// a host its ranks count as hosts, and what joins them as their link. What
/// cannot be measured here keeps the defaults; a group of one measures nothing.
/// Rates are those of payload.
[[nodiscard]] MeasuredNetwork measure_network(
    comm::Communicator& comm, const comm::Hosts& hosts,
    const MeasureOptions& options = {});

/// A machine, and what is asked of its processors.
struct Processors {
  int cores = 1;    ///< That its ranks may run on.
  int ranks = 1;    ///< On this machine, whatever they are told of hosts.
  int threads = 1;  ///< Of a rank that compute; 0: an accelerator does.

  /// There is one for each rank's communication beside those that compute.
  [[nodiscard]] bool has_spare_core() const noexcept {
    return threads == 0 || cores >= ranks * (threads + 1);
  }
};

/// Local: `ranks` on this machine. Cores are those of the affinity mask.
/// `threads` in [0, 1024], below 0: THINWIRE_NUM_THREADS, else 1. Throws
/// Error(kInvalidArgument).
[[nodiscard]] Processors processors_for(int ranks, int threads = -1);

/// Collective: the machine with the least to spare; its cores are those of its
/// ranks' affinity masks together. `threads` as above, those of its ranks may
/// differ: the most count.
[[nodiscard]] Processors measure_processors(comm::Communicator& comm,
                                            int threads = -1);

/// For people: "2 ranks of 1 thread on 2 cores: none to spare, ...", a line.
[[nodiscard]] std::string describe(const Processors& processors);

/// Collective: the kernels of compressed and exact steps, on all ranks at once,
/// as in a step.
[[nodiscard]] MeasuredCompute measure_compute(
    comm::Communicator& comm, const MeasureOptions& options = {});

/// Returns lines for people, with the spread of each figure in brackets, and
/// last the warning of unstable().
[[nodiscard]] std::string describe(const MeasuredNetwork& network);
[[nodiscard]] std::string describe(const MeasuredCompute& compute);

/// Returns a line that names the figures with a spread above kMostSpread, or
/// "".
[[nodiscard]] std::string unstable(const MeasuredNetwork& network);
[[nodiscard]] std::string unstable(const MeasuredCompute& compute);

}  // namespace thinwire::plan
