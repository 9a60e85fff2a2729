// SPDX-License-Identifier: Apache-2.0
// Low-bit optimizers by host, against plain loops in which every host is one
// worker that has the mean of its ranks' gradients.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "optim/naive/naive.h"
#include "optim/support.h"
#include "support/same_bits.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::test::by_host {

using naive::Floats;

struct Ranks {
  int hosts;
  int per_host;
  [[nodiscard]] int size() const { return hosts * per_host; }
};

/// Calls body(optimizer's communicator by host) on every rank.
inline void run_by_host(Ranks ranks,
                        const std::function<void(comm::Communicator&)>& body) {
  comm::run_local_ranks(ranks.size(), [&](comm::Communicator& flat) {
    const auto comm = flat.by_host(
        comm::find_hosts(flat, {.ranks_per_host = ranks.per_host}));
    body(*comm);
  });
}

struct Given {
  ParameterLayout layout = grouped_layout();
  std::int64_t steps = 9;
  /// The dtype of gradients after `exact_steps` steps.
  DType dtype = DType::kFloat32;
  std::int64_t exact_steps = 3;
  bool settles = false;  ///< Gradients are larger at first.
};

/// Rank r's; from step 6 on the parameter without a gradient has one, on one
/// rank.
inline Floats gradient_of(const Given& given, std::int64_t t, int rank) {
  Floats g = gradient_with_gaps(given.layout, t, rank);
  const Parameter& dead = given.layout.parameter("dead");
  if (t >= 6 && rank == 1) g[dead.offset + 2] = 0.25f;
  if (given.settles)
    for (float& value : g)
      value *= 1 + 3 * std::exp(-static_cast<float>(t) / 2);
  if (given.dtype == DType::kFloat32 || t <= given.exact_steps) return g;
  Buffer rounded(g.size(), given.dtype);
  kernels::convert(g, rounded.view());
  kernels::convert(std::as_const(rounded).view(), g);
  return g;
}

/// Ranks' gradients, averaged beforehand for every host.
inline std::vector<std::vector<Floats>> means(const Given& given, Ranks ranks) {
  std::vector<std::vector<Floats>> all;
  for (std::int64_t t = 1; t <= given.steps; ++t) {
    all.emplace_back();
    for (int h = 0; h < ranks.hosts; ++h) {
      Floats mean = gradient_of(given, t, h * ranks.per_host);
      for (int l = 1; l < ranks.per_host; ++l) {
        const Floats g = gradient_of(given, t, h * ranks.per_host + l);
        for (std::size_t i = 0; i < g.size(); ++i) mean[i] = mean[i] + g[i];
      }
      for (float& g : mean) g = g * (1.0f / static_cast<float>(ranks.per_host));
      all.back().push_back(std::move(mean));
    }
  }
  return all;
}

/// Parameters of every rank after every step are those of `naive`, whose
/// workers are the hosts.
template <class Naive>
void expect_same_run(Ranks ranks, const Given& given, Naive naive,
                     const MakeOptimizer& make) {
  const auto size = static_cast<std::size_t>(ranks.size());
  std::vector<std::vector<Floats>> got(static_cast<std::size_t>(given.steps),
                                       std::vector<Floats>(size));
  run_by_host(ranks, [&](comm::Communicator& comm) {
    const auto optimizer = make(comm, given.layout);
    Floats params = normal(given.layout.size(), 3);
    for (std::int64_t t = 1; t <= given.steps; ++t) {
      const Floats g = gradient_of(given, t, comm.rank());
      const bool is_exact = t <= given.exact_steps;
      Buffer grads(g.size(), is_exact ? DType::kFloat32 : given.dtype);
      kernels::convert(g, grads.view());
      const optim::StepReport report = optimizer->step(params, grads.view());
      EXPECT_TRUE(report.applied);
      got[static_cast<std::size_t>(t - 1)]
         [static_cast<std::size_t>(comm.rank())] = params;
    }
  });
  const auto of_hosts = means(given, ranks);
  for (std::size_t t = 0; t < of_hosts.size(); ++t) {
    ASSERT_TRUE(naive.step(of_hosts[t]));
    for (std::size_t r = 0; r < size; ++r)
      ASSERT_TRUE(same_bits(std::span<const float>(got[t][r]),
                            std::span<const float>(naive.params(
                                static_cast<int>(r) / ranks.per_host))))
          << fmt::format("rank {} of {} hosts of {}, step {}", r, ranks.hosts,
                         ranks.per_host, t + 1);
  }
}

/// Options that cut blocks, buckets and groups otherwise.
template <class Options>
std::vector<Options> variants(const Options& plain) {
  Options masks = with_second_group(plain);
  masks.groups[0].exp_avg_mask = every_third_masked(grouped_layout(), 0);
  masks.compression.exchange.bucket_elements = 400;
  masks.compression.exchange.num_threads = 3;
  Options small = plain;
  small.compression.exchange.bucket_elements = 1;
  small.compression.residual_dtype = DType::kBFloat16;
  return {plain, masks, small};
}

inline constexpr Ranks kRanks[] = {{2, 2}, {4, 2}, {2, 4}, {4, 1}};
inline std::string name_of(const ::testing::TestParamInfo<Ranks>& tested) {
  return fmt::format("{}x{}", tested.param.hosts, tested.param.per_host);
}

}  // namespace thinwire::test::by_host
