// SPDX-License-Identifier: Apache-2.0
// Runs an optimizer and its naive counterpart over the same gradients.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "optim/support.h"
#include "support/converted.h"
#include "support/same_bits.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/buffer.h"
#include "thinwire/optim/onebit_lamb.h"

namespace thinwire::test {

/// Flat, or hosts of several ranks each; in the second case a host is one
/// worker that has the mean of its ranks' gradients.
struct Ranks {
  int hosts = 1;
  int per_host = 1;
  [[nodiscard]] int size() const { return hosts * per_host; }
};

inline constexpr Ranks kByHost[] = {{2, 2}, {4, 2}, {2, 4}, {4, 1}};
inline std::string name_of_ranks(
    const ::testing::TestParamInfo<Ranks>& tested) {
  return fmt::format("{}x{}", tested.param.hosts, tested.param.per_host);
}

/// Calls body(optimizer's communicator) on every rank.
inline void run_by_host(Ranks ranks,
                        const std::function<void(comm::Communicator&)>& body) {
  comm::run_local_ranks(ranks.size(), [&](comm::Communicator& flat) {
    if (ranks.per_host == 1) return body(flat);
    const auto comm = flat.by_host(
        comm::find_hosts(flat, {.ranks_per_host = ranks.per_host}));
    body(*comm);
  });
}

/// gradient_with_gaps(); from step 6 on "dead" has a gradient, on one rank.
inline std::vector<float> late_on_one_rank(const ParameterLayout& layout,
                                           std::int64_t t, int rank) {
  std::vector<float> g = gradient_with_gaps(layout, t, rank);
  if (t >= 6 && rank == 1) g[layout.parameter("dead").offset + 2] = 0.25f;
  return g;
}

/// The events of a run; t counts calls of step() from 1.
struct Drive {
  std::int64_t steps = 12;
  std::function<std::vector<float>(const ParameterLayout&, std::int64_t t,
                                   int rank)>
      gradient = [](const ParameterLayout& layout, std::int64_t t, int rank) {
        return test::gradient(layout.size(), t, rank);
      };
  /// Set before step t; none: as it was.
  std::function<double(std::int64_t t, std::size_t group)> learning_rate{};
  std::function<double(std::int64_t t, std::size_t group)> weight_decay{};
  /// synchronize() after step t.
  std::function<bool(std::int64_t t)> synchronizes = [](auto) { return false; };
  /// The dtype of gradients after `exact_steps` steps.
  DType dtype = DType::kFloat32;
  std::int64_t exact_steps = 0;

  [[nodiscard]] Buffer grads(const ParameterLayout& layout, std::int64_t t,
                             int rank) const {
    const std::vector<float> values = gradient(layout, t, rank);
    return converted(values, t > exact_steps ? dtype : DType::kFloat32);
  }
  /// The mean over the ranks of each host.
  [[nodiscard]] std::vector<std::vector<float>> of_workers(
      Ranks ranks, const ParameterLayout& layout, std::int64_t t) const {
    std::vector<std::vector<float>> means;
    for (int h = 0; h < ranks.hosts; ++h) {
      std::vector<float>& mean = means.emplace_back(layout.size());
      for (int l = 0; l < ranks.per_host; ++l) {
        const auto own =
            floats_of(grads(layout, t, h * ranks.per_host + l).view());
        for (std::size_t i = 0; i < own.size(); ++i)
          mean[i] = l == 0 ? own[i] : mean[i] + own[i];
      }
      for (float& g : mean) g = g * (1.0f / static_cast<float>(ranks.per_host));
    }
    return means;
  }
};

/// The drive on every rank. Element [t - 1][r] is what `after` returns for rank
/// r after its step t.
template <class Result>
std::vector<std::vector<Result>> drive(
    Ranks of, const ParameterLayout& layout, const Drive& run,
    const MakeOptimizer& make,
    const std::function<Result(optim::Optimizer&, const optim::StepReport&,
                               const std::vector<float>& params)>& after) {
  const auto ranks = static_cast<std::size_t>(of.size());
  std::vector<std::vector<Result>> results(static_cast<std::size_t>(run.steps),
                                           std::vector<Result>(ranks));
  run_by_host(of, [&](comm::Communicator& comm) {
    const auto optimizer = make(comm, layout);
    std::vector<float> params = normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= run.steps; ++t) {
      for (std::size_t g = 0; g < layout.num_groups(); ++g) {
        if (run.learning_rate)
          optimizer->groups().set_learning_rate(g, run.learning_rate(t, g));
        if (run.weight_decay)
          optimizer->groups().set_weight_decay(g, run.weight_decay(t, g));
      }
      Buffer grads = run.grads(layout, t, comm.rank());
      const optim::StepReport report = optimizer->step(params, grads.view());
      if (run.synchronizes(t)) optim::synchronize(*optimizer, params);
      results[static_cast<std::size_t>(t - 1)]
             [static_cast<std::size_t>(comm.rank())] =
                 after(*optimizer, report, params);
    }
  });
  return results;
}

struct Outcome {
  bool applied = false;
  optim::Phase phase = optim::Phase::kExact;
  std::vector<float> params;
  std::vector<double> coeffs;  ///< Of 1-bit LAMB.
  std::size_t masked = 0, heavy = 0, revived = 0;
};

inline Outcome outcome_of(optim::Optimizer& optimizer,
                          const optim::StepReport& report,
                          const std::vector<float>& params) {
  return {report.applied, report.phase,
          params,         optimizer.progress().lamb_coeffs,
          report.masked,  report.heavy,
          report.revived};
}

/// Parameters of every rank after every step are those of `naive`, to the bit.
template <class Naive>
void expect_same_run(Ranks ranks, const ParameterLayout& layout,
                     const Drive& run, Naive naive, const MakeOptimizer& make) {
  const auto got = drive<Outcome>(ranks, layout, run, make, outcome_of);
  for (std::int64_t t = 1; t <= run.steps; ++t) {
    for (std::size_t g = 0; g < layout.num_groups(); ++g) {
      if (run.learning_rate)
        naive.group(g).learning_rate = run.learning_rate(t, g);
      if (run.weight_decay)
        naive.group(g).weight_decay = run.weight_decay(t, g);
    }
    const bool applied = naive.step(run.of_workers(ranks, layout, t));
    if (run.synchronizes(t)) naive.synchronize();
    for (int r = 0; r < ranks.size(); ++r) {
      const Outcome& outcome =
          got[static_cast<std::size_t>(t - 1)][static_cast<std::size_t>(r)];
      ASSERT_EQ(outcome.applied, applied) << "step " << t;
      ASSERT_TRUE(
          same_bits(std::span<const float>(outcome.params),
                    std::span<const float>(naive.params(r / ranks.per_host))))
          << fmt::format("rank {} of {} hosts of {}, step {}", r, ranks.hosts,
                         ranks.per_host, t);
      if (ranks.per_host > 1) continue;
      if constexpr (requires { naive.phase; }) {
        if (applied) {
          ASSERT_EQ(outcome.phase, naive.phase) << "step " << t;
        }
      }
      if constexpr (requires { naive.counts; }) {
        if (applied && outcome.phase == optim::Phase::kCompressed) {
          ASSERT_EQ(outcome.masked, naive.counts.masked) << "step " << t;
          ASSERT_EQ(outcome.heavy, naive.counts.heavy) << "step " << t;
          ASSERT_EQ(outcome.revived, naive.counts.revived) << "step " << t;
        }
      }
      if constexpr (requires { naive.coeffs; }) {
        if (applied) {
          ASSERT_EQ(outcome.coeffs, naive.coeffs) << "step " << t;
        }
      }
    }
  }
}

/// The same of optimizers that are made with the same options.
template <class Naive, class Options>
void expect_plain_loops(Ranks ranks, const ParameterLayout& layout,
                        const Drive& run, const Options& options,
                        MakeOptimizer (*make)(Options)) {
  expect_same_run(ranks, layout, run,
                  Naive(ranks.hosts, layout, options, normal(layout.size(), 3)),
                  make(options));
}

}  // namespace thinwire::test
