// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "exchange/sign_exchange.h"
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

/// A SignExchange that averages arrays.
class SignAverage : public exchange::SignExchange {
 public:
  struct Options {
    exchange::BlockOptions blocks{};
    DType residual_dtype = DType::kFloat32;
    bool keeps_previous = false;
  };

  SignAverage(comm::Communicator& comm, ThreadPool& pool,
              const std::vector<Range>& units, const Options& options,
              const comm::HostGroups* groups = nullptr)
      : SignExchange(comm, groups, pool,
                     exchange::BlockLayout(units, options.blocks),
                     {options.residual_dtype, options.keeps_previous}) {}

  void all_reduce(std::vector<float>& x) {
    const auto blocks = layout().blocks();
    run(
        [&](std::size_t b) {
          return kernels::SignInput{.values =
                                        x.data() + blocks[b].values.offset};
        },
        [&](std::size_t b, kernels::Signs mean) {
          kernels::sign_decode(mean, active().words(layout(), b),
                               x.data() + blocks[b].values.offset,
                               blocks[b].values.size);
        });
  }
  [[nodiscard]] ConstView worker_error() { return errors().worker.values(); }
  [[nodiscard]] ConstView server_error() { return errors().server.values(); }
};

/// An exchange, and the pool it needs.
template <class All, class AllOptions>
struct WithPool {
  using Options = AllOptions;

  WithPool(comm::Communicator& comm, const std::vector<Range>& units,
           Options options = {}, int threads = 1)
      : pool(threads), all(comm, pool, units, for_world(options, comm)) {}

  static Options for_world(Options options, const comm::Communicator& comm) {
    options.blocks.world_size = comm.size();
    return options;
  }

  ThreadPool pool;
  All all;
};
using Exchange = WithPool<exchange::CompressedAllReduce,
                          exchange::CompressedAllReduceOptions>;
using SignsExchange = WithPool<SignAverage, SignAverage::Options>;

}  // namespace thinwire::test
