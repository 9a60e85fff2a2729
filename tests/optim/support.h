// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "thinwire/comm/local.h"
#include "thinwire/optim/data_parallel.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::test {

inline std::vector<float> normal(std::size_t n, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(n);
  for (float& value : values) value = distribution(generator);
  return values;
}

/// A gradient that ranks and steps share in part, as training has.
inline std::vector<float> gradient(std::size_t n, std::int64_t step, int rank) {
  std::vector<float> values = normal(n, 7);
  const auto noise = normal(n, 1000 + static_cast<std::uint32_t>(step) * 16 +
                                   static_cast<std::uint32_t>(rank));
  for (std::size_t i = 0; i < n; ++i) values[i] += 0.5f * noise[i];
  return values;
}

/// Awkward sizes: empty, one, odd, smaller than the world, more than a block.
inline ParameterLayout small_layout() {
  return ParameterLayout::of({{"empty", {0}},
                              {"scalar", {}},
                              {"odd", {33, 17}},
                              {"three", {3}},
                              {"wide", {3, 700}}});
}

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(
    comm::Communicator&, const ParameterLayout&)>;

inline MakeOptimizer exact_adam(optim::AdamOptions options,
                                optim::ExchangeOptions exchange = {}) {
  return [=](comm::Communicator& comm, const ParameterLayout& layout) {
    return std::make_unique<optim::DataParallel>(
        comm, std::make_unique<optim::Adam>(layout, options), exchange);
  };
}

inline MakeOptimizer onebit_adam(optim::OnebitAdamOptions options) {
  return [=](comm::Communicator& comm, const ParameterLayout& layout) {
    return std::make_unique<optim::OnebitAdam>(comm, layout, options);
  };
}

/// Parameters of every rank after `steps` steps from the same start.
inline std::vector<std::vector<float>> train(
    int world, const ParameterLayout& layout, const MakeOptimizer& make,
    std::int64_t steps,
    const std::function<void(optim::Optimizer&, const optim::StepReport&)>&
        after_step = {}) {
  std::vector<std::vector<float>> params(static_cast<std::size_t>(world));
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    const auto optimizer = make(comm, layout);
    auto& mine = params[static_cast<std::size_t>(comm.rank())];
    mine = normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= steps; ++t) {
      auto grads = gradient(layout.size(), t, comm.rank());
      const optim::StepReport report = optimizer->step(mine, grads);
      if (after_step && comm.rank() == 0) after_step(*optimizer, report);
    }
  });
  return params;
}

}  // namespace thinwire::test
