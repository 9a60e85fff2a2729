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

/// Returns the seconds of the slowest rank; all begin together.
[[nodiscard]] double slowest_seconds(comm::Communicator& comm,
                                     const std::function<void()>& body);

/// Measures a row. Collective; every rank gets the times of the slowest rank.
[[nodiscard]] Result measure(comm::Communicator& comm, const ExchangeRow& row,
                             const Settings& settings);

}  // namespace thinwire::apps::bench
