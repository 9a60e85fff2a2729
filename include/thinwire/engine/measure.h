// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "thinwire/comm/communicator.h"
#include "thinwire/engine/planner.h"

/// What a planner has to know of these machines, measured: a second or two
/// where links are fast. Medians over rounds; of the ranks the slowest counts,
/// so all get the same.
namespace thinwire::engine {

struct MeasureOptions {
  int rounds = 5;  ///< >= 1.
  /// Elements of the arrays that are computed on, >= 1: more than caches hold.
  std::size_t elements = std::size_t{1} << 22;
  /// Of the ranks, in [0, 1024]; 0: THINWIRE_NUM_THREADS, else 1.
  int num_threads = 0;
  /// Of one message, in the measurement of a link's rate; >= 1.
  std::size_t message_bytes = std::size_t{4} << 20;
};

/// Collective: all-to-alls of 8 bytes, 1 KiB and 4 MiB per peer, between hosts
/// and inside of one, all groups at once. `comm` is flat. Where all ranks share
/// a host its ranks count as hosts, and what joins them as their link. What
/// cannot be measured here keeps the defaults; a group of one measures nothing.
/// Rates are those of payload.
[[nodiscard]] Network measure_network(comm::Communicator& comm,
                                      const comm::Hosts& hosts,
                                      const MeasureOptions& options = {});

/// Collective: the kernels of compressed and exact steps, on all ranks at once,
/// as in a step.
[[nodiscard]] Compute measure_compute(comm::Communicator& comm,
                                      const MeasureOptions& options = {});

}  // namespace thinwire::engine
