// SPDX-License-Identifier: Apache-2.0
// Runs on any number of ranks, and what their checkpoints say of all of them.
// THINWIRE_TEST_LONG takes all pairs of 1, 2, 3, 4, 5, 8.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/by_hand.h"
#include "engine/checkpoint/saved.h"
#include "support/long.h"
#include "support/sanitizers.h"
#include "thinwire/comm/local.h"

namespace thinwire::engine::all_worlds {

using config::Config;
using test::Saved;
using test::Sharded;
using thinwire::test::is_long;
using Doubles = std::vector<double>;

inline const checkpoint::SaveOptions kQuick{.durable = false};

/// Returns the numbers of ranks that are tried.
inline std::vector<int> worlds() {
  if (!is_long()) return {1, 2, 3};
  return thinwire::test::fewer_if_sanitized<int>({1, 2, 3, 4, 5, 8}, 3);
}

/// Sizes around those of blocks, in two groups.
inline ParameterLayout awkward_layout() {
  return ParameterLayout::of({{"empty", {0}, 0},
                              {"one", {1}, 0},
                              {"b1023", {1023}, 1},
                              {"b1024", {1024}, 0},
                              {"b1025", {1025}, 1},
                              {"b4097", {4097}, 0}});
}

/// Several buckets, and nothing is clipped.
inline Config config_of(const std::string& optimizer) {
  Config config{.optimizer = test::optimizer_case(optimizer)};
  config.comm.bucket_elements = 2048;
  return config;
}

/// Every element has a gradient on every rank, and none stands out.
inline std::vector<float> gradient(std::int64_t t, int rank) {
  const std::size_t n = awkward_layout().size();
  std::vector<float> values = test::initial_params(n, 4);
  const auto own =
      test::initial_params(n, static_cast<int>(16 * t) + rank + 100);
  for (std::size_t i = 0; i < n; ++i) values[i] = 0.3f * values[i] + own[i];
  return values;
}

struct Trained : Sharded {
  Trained(comm::Communicator& c, const Config& config)
      : Sharded(c, config, {.layout = awkward_layout()}) {}

  EngineReport step(std::int64_t t) {
    const std::vector<float> values = gradient(t, comm.rank());
    Buffer own(values.size(), DType::kFloat32);
    kernels::convert(values, own.view());
    engine.begin_backward();
    for (std::size_t k = 0; k < layout.parameters().size(); ++k)
      hand_over(own, k);
    engine.end_backward();
    return engine.step();
  }
};

struct Plan {
  std::string from{};  ///< Loaded, unless empty.
  std::int64_t first = 1;
  std::int64_t steps = 0;
};

/// Ranks that train as planned and save; returns the checkpoint. A save
/// compares the ranks' replicas, so they are equal then.
inline std::string run(int world, const Config& config, const std::string& root,
                       const Plan& plan) {
  std::string saved;
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    Trained training(comm, config);
    if (!plan.from.empty()) static_cast<void>(training.engine.load(plan.from));
    for (std::int64_t t = plan.first; t < plan.first + plan.steps; ++t)
      EXPECT_TRUE(training.step(t).applied);
    const auto report = training.engine.save(root, {}, kQuick);
    if (comm.rank() == 0) saved = report.path;
  });
  return saved;
}

inline Doubles doubles(const Buffer& values) {
  std::vector<float> all(values.size());
  kernels::convert(values.view(), all);
  return {all.begin(), all.end()};
}

/// Returns the mean of an array over the ranks that saved it.
inline Doubles mean_of_ranks(Saved& saved, const std::string& name) {
  Doubles mean;
  const int world = saved.manifest().world;
  for (int r = 0; r < world; ++r) {
    const Doubles own = doubles(saved.arrays().read_all(name, r));
    mean.resize(std::max(mean.size(), own.size()));
    for (std::size_t i = 0; i < own.size(); ++i) mean[i] += own[i] / world;
  }
  return mean;
}

inline constexpr double kBeta = 0.9;

inline Doubles mean_gradient(int world, std::int64_t t) {
  Doubles mean(awkward_layout().size());
  for (int r = 0; r < world; ++r) {
    const std::vector<float> own = gradient(t, r);
    for (std::size_t i = 0; i < own.size(); ++i)
      mean[i] += double{own[i]} / world;
  }
  return mean;
}

}  // namespace thinwire::engine::all_worlds
