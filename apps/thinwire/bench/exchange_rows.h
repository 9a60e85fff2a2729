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

/// One line of the result: something that all ranks of a job do together.
struct ExchangeRow {
  std::string name;
  /// As Row::prepare; what it returns is collective.
  std::function<std::function<void()>(comm::Communicator& comm,
                                      std::size_t elements, ThreadPool& pool)>
      prepare;
};

[[nodiscard]] std::span<const ExchangeRow> exchange_rows();

struct ExchangeSettings {
  std::size_t elements = 0;
  int threads = 1;
  int rounds = 1;
  /// Of the link that each rank sends over, > 0; 0: unknown, and the limit is
  /// a plain all-to-all of as many bytes, measured in the same rounds.
  double link_gbps = 0;
};

/// Collective; every rank gets the same times, those of the slowest rank.
[[nodiscard]] Result measure(comm::Communicator& comm, const ExchangeRow& row,
                             const ExchangeSettings& settings);

}  // namespace thinwire::apps::bench
