// SPDX-License-Identifier: Apache-2.0
// Runs an optimizer and its naive counterpart over the same gradients.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "optim/support.h"
#include "support/same_bits.h"
#include "thinwire/optim/onebit_lamb.h"

namespace thinwire::test {

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
};

/// The drive on every rank. Element [t - 1][r] is what `after` returns for rank
/// r after its step t.
template <class Result>
std::vector<std::vector<Result>> drive(
    int world, const ParameterLayout& layout, const Drive& run,
    const MakeOptimizer& make,
    const std::function<Result(optim::Optimizer&, const optim::StepReport&,
                               const std::vector<float>& params)>& after) {
  const auto ranks = static_cast<std::size_t>(world);
  std::vector<std::vector<Result>> results(static_cast<std::size_t>(run.steps),
                                           std::vector<Result>(ranks));
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    const auto optimizer = make(comm, layout);
    std::vector<float> params = normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= run.steps; ++t) {
      for (std::size_t g = 0; g < layout.num_groups(); ++g) {
        if (run.learning_rate)
          optimizer->groups().set_learning_rate(g, run.learning_rate(t, g));
        if (run.weight_decay)
          optimizer->groups().set_weight_decay(g, run.weight_decay(t, g));
      }
      auto grads = run.gradient(layout, t, comm.rank());
      const optim::StepReport report = optimizer->step(params, grads);
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
void expect_same_run(int world, const ParameterLayout& layout, const Drive& run,
                     Naive naive, const MakeOptimizer& make) {
  const auto got = drive<Outcome>(world, layout, run, make, outcome_of);
  for (std::int64_t t = 1; t <= run.steps; ++t) {
    std::vector<std::vector<float>> grads;
    for (int r = 0; r < world; ++r) grads.push_back(run.gradient(layout, t, r));
    for (std::size_t g = 0; g < layout.num_groups(); ++g) {
      if (run.learning_rate)
        naive.group(g).learning_rate = run.learning_rate(t, g);
      if (run.weight_decay)
        naive.group(g).weight_decay = run.weight_decay(t, g);
    }
    const bool applied = naive.step(grads);
    if (run.synchronizes(t)) naive.synchronize();
    for (int r = 0; r < world; ++r) {
      const Outcome& outcome =
          got[static_cast<std::size_t>(t - 1)][static_cast<std::size_t>(r)];
      ASSERT_EQ(outcome.applied, applied) << "step " << t;
      ASSERT_TRUE(same_bits(std::span<const float>(outcome.params),
                            std::span<const float>(naive.params(r))))
          << fmt::format("rank {} of {}, step {}", r, world, t);
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

}  // namespace thinwire::test
