// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "thinwire/comm/local.h"
#include "thinwire/optim/data_parallel.h"
#include "thinwire/optim/lamb.h"
#include "thinwire/optim/onebit_adam.h"
#include "thinwire/optim/onebit_lamb.h"
#include "thinwire/optim/zero_one_adam.h"

namespace thinwire::test {

std::vector<float> normal(std::size_t n, std::uint32_t seed);
/// A gradient that ranks and steps share in part, as training has.
std::vector<float> gradient(std::size_t n, std::int64_t step, int rank);
/// gradient(), but 0 in the tensor "dead", in every fifth element of
/// "block_and_one", and of another size in each tensor.
std::vector<float> gradient_with_gaps(const ParameterLayout& layout,
                                      std::int64_t step, int rank);

/// Names tests whose parameters are a number of ranks and something with a
/// name.
inline constexpr auto kNameAndWorld = [](const auto& tested) {
  const auto& [world, named] = tested.param;
  return fmt::format("{}_w{}", named.name, world);
};

/// Awkward sizes: empty, one, odd, smaller than the world, more than a block.
inline ParameterLayout small_layout() {
  return ParameterLayout::of({{"empty", {0}},
                              {"scalar", {}},
                              {"odd", {33, 17}},
                              {"three", {3}},
                              {"wide", {3, 700}}});
}

/// Sizes around those of words, vectors and blocks, one tensor without any
/// gradient (see gradient_with_gaps), in two groups.
inline ParameterLayout awkward_layout() {
  return ParameterLayout::of({{"empty", {0}, 0},
                              {"one", {1}, 0},
                              {"seven", {7}, 1},
                              {"w31", {31}, 0},
                              {"w32", {32}, 0},
                              {"w33", {33}, 1},
                              {"dead", {40}, 0},
                              {"block_and_one", {1025}, 0},
                              {"none", {4, 0}, 1},
                              {"wide", {4097}, 1},
                              {"scalar", {}, 1}});
}

/// Small, with a part of each group on both sides of the other's.
inline ParameterLayout grouped_layout() {
  return ParameterLayout::of({{"block_and_one", {1025}, 0},
                              {"w33", {33}, 1},
                              {"dead", {5}, 0},
                              {"seven", {7}, 1},
                              {"last", {2, 40}, 0}});
}

/// One value per element of the layout's group: 0 for the first and every third
/// after it.
inline std::vector<float> every_third_masked(const ParameterLayout& layout,
                                             std::size_t group) {
  std::vector<float> mask;
  for (const Parameter& p : layout.parameters())
    if (p.group == group)
      for (std::size_t i = 0; i < p.size; ++i)
        mask.push_back(mask.size() % 3 == 0 ? 0.0f : 1.0f);
  return mask;
}

/// Every third element of each group is masked.
template <class Options>
Options with_masks(Options o, const ParameterLayout& layout) {
  for (std::size_t g = 0; g < o.groups.size(); ++g)
    o.groups[g].exp_avg_mask = every_third_masked(layout, g);
  return o;
}

/// A second group that differs from the first in all that groups may set.
template <class Options>
Options with_second_group(Options o) {
  o.groups.resize(2);
  o.groups[1].learning_rate = 0.05;
  o.groups[1].beta1 = 0.8;
  o.groups[1].beta2 = 0.95;
  o.groups[1].epsilon = 1e-3;
  o.groups[1].weight_decay = 0;
  return o;
}

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(
    comm::Communicator&, const ParameterLayout&)>;

inline MakeOptimizer exact_adam(optim::AdamOptions options,
                                optim::ExchangeOptions exchange = {},
                                optim::AverageOptions average = {}) {
  return [=](comm::Communicator& comm, const ParameterLayout& layout) {
    return std::make_unique<optim::DataParallel>(
        comm, std::make_unique<optim::Adam>(layout, options), exchange,
        average);
  };
}

inline MakeOptimizer onebit_adam(optim::OnebitAdamOptions options) {
  return [=](comm::Communicator& comm, const ParameterLayout& layout) {
    return std::make_unique<optim::OnebitAdam>(comm, layout, options);
  };
}

inline MakeOptimizer exact_lamb(optim::LambOptions options,
                                optim::ExchangeOptions exchange = {},
                                optim::AverageOptions average = {}) {
  return [=](comm::Communicator& comm, const ParameterLayout& layout) {
    return std::make_unique<optim::DataParallel>(
        comm, std::make_unique<optim::Lamb>(layout, options), exchange,
        average);
  };
}

inline MakeOptimizer onebit_lamb(optim::OnebitLambOptions options) {
  return [=](comm::Communicator& comm, const ParameterLayout& layout) {
    return std::make_unique<optim::OnebitLamb>(comm, layout, options);
  };
}

inline MakeOptimizer zero_one_adam(optim::ZeroOneAdamOptions options) {
  return [=](comm::Communicator& comm, const ParameterLayout& layout) {
    return std::make_unique<optim::ZeroOneAdam>(comm, layout, options);
  };
}

/// Takes step t of a rank, with gradient().
inline optim::StepReport step_of(optim::Optimizer& optimizer,
                                 std::vector<float>& params, std::int64_t t,
                                 int rank) {
  auto grads = gradient(params.size(), t, rank);
  return optimizer.step(params, grads);
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
