// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "support/converted.h"
#include "thinwire/comm/local.h"
#include "thinwire/exchange/compressed_all_reduce.h"

namespace thinwire::test {

/// Normal values with a different spread every 500 elements, as layers have.
inline std::vector<float> layered_values(std::size_t n, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) {
    const float spread = i / 500 % 3 == 0 ? 1.0f : 1e-3f;
    values[i] = spread * normal(generator);
  }
  return values;
}

inline std::size_t total(const std::vector<Range>& units) {
  return units.back().end();
}

/// One after another.
inline std::vector<Range> units_of(const std::vector<std::size_t>& sizes) {
  std::vector<Range> units;
  for (const std::size_t size : sizes)
    units.push_back({units.empty() ? 0 : units.back().end(), size});
  return units;
}

/// Parameters of awkward sizes: one, empty, short, a block, more than one.
inline std::vector<Range> awkward_units() {
  return units_of({1, 0, 7, 31, 32, 33, 1024, 1025, 4097});
}

/// An exchange, and the pool it needs.
struct Exchange {
  using Options = exchange::CompressedAllReduceOptions;

  Exchange(comm::Communicator& comm, const std::vector<Range>& units,
           Options options = {}, int threads = 1)
      : pool(threads), all(comm, pool, units, for_world(options, comm)) {}

  static Options for_world(Options options, const comm::Communicator& comm) {
    options.blocks.world_size = comm.size();
    return options;
  }

  ThreadPool pool;
  exchange::CompressedAllReduce all;
};

}  // namespace thinwire::test
