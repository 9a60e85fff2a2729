// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "thinwire/comm/local.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/view.h"
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

/// What a residual holds.
inline std::vector<float> floats_of(ConstView residual) {
  std::vector<float> values(residual.size());
  if (residual.dtype() == DType::kFloat32)
    std::ranges::copy(residual.as<float>(), values.begin());
  else
    std::ranges::transform(residual.as<BFloat16>(), values.begin(),
                           [](BFloat16 value) { return to_float(value); });
  return values;
}

inline std::size_t total(const std::vector<Range>& units) {
  return units.back().end();
}

/// Parameters of awkward sizes: one, empty, short, a block, more than one.
inline std::vector<Range> awkward_units() {
  std::vector<Range> units;
  std::size_t offset = 0;
  for (const std::size_t size : {1, 0, 7, 31, 32, 33, 1024, 1025, 4097}) {
    units.push_back({offset, size});
    offset += size;
  }
  return units;
}

/// An exchange, and the pool it needs.
template <class AllReduce, class AllReduceOptions>
struct ExchangeOf {
  using Options = AllReduceOptions;

  ExchangeOf(comm::Communicator& comm, const std::vector<Range>& units,
             Options options = {}, int threads = 1)
      : pool(threads), all(comm, pool, units, for_world(options, comm)) {}

  static Options for_world(Options options, const comm::Communicator& comm) {
    options.blocks.world_size = comm.size();
    return options;
  }

  ThreadPool pool;
  AllReduce all;
};

using Exchange = ExchangeOf<exchange::CompressedAllReduce,
                            exchange::CompressedAllReduceOptions>;

/// Results of `steps` calls of all_reduce(), one after the other, per rank;
/// step t of rank r averages layered_values(n, 10 t + r).
template <class E>
std::vector<std::vector<float>> all_reduced(int world,
                                            const std::vector<Range>& units,
                                            typename E::Options options = {},
                                            int threads = 1,
                                            std::uint32_t steps = 3) {
  std::vector<std::vector<float>> results(static_cast<std::size_t>(world));
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    E exchange(comm, units, options, threads);
    auto& mine = results[static_cast<std::size_t>(comm.rank())];
    for (std::uint32_t step = 0; step < steps; ++step) {
      std::vector<float> values =
          layered_values(units.back().end(),
                         step * 10 + static_cast<std::uint32_t>(comm.rank()));
      EXPECT_EQ(exchange.all.all_reduce(values), -1);
      mine.insert(mine.end(), values.begin(), values.end());
    }
  });
  return results;
}

}  // namespace thinwire::test
