// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "apps/thinwire/bench/result.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/thread_pool.h"

namespace thinwire::apps::bench {

/// One line of the result, which all ranks of a job measure together.
struct ExchangeRow {
  std::string name;
  /// Prepares like Row::prepare; the returned function is collective.
  std::function<std::function<void()>(comm::Communicator& comm,
                                      std::size_t elements, ThreadPool& pool)>
      prepare;
};

[[nodiscard]] std::span<const ExchangeRow> exchange_rows();

struct ExchangeSettings {
  std::size_t elements = 0;
  int threads = 1;
  int rounds = 1;
  /// Speed of the link over which each rank sends. If it is 0 (unknown), the
  /// limit is a plain all-to-all of as many bytes, measured in the same rounds.
  double link_gbps = 0;
};

/// Measures a row. Collective; every rank gets the times of the slowest rank.
[[nodiscard]] Result measure(comm::Communicator& comm, const ExchangeRow& row,
                             const ExchangeSettings& settings);

}  // namespace thinwire::apps::bench
