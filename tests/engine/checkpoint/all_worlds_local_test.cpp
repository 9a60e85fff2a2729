// SPDX-License-Identifier: Apache-2.0
// From any number of ranks to any other between two syncs of 0/1 Adam: what all
// of them owe is kept.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <variant>

#include "engine/checkpoint/all_worlds.h"
#include "support/folder.h"

namespace thinwire::engine::all_worlds::all_worlds_local_test {

namespace {

using thinwire::test::Folder;

// Sums over all ranks.
struct LocalAccount {
  Doubles momentum;
  Doubles total;  ///< d (theta + u) + e + what the servers owe.
};

LocalAccount local_account(const std::string& path) {
  Saved saved(path);
  const std::size_t n = awkward_layout().size();
  const auto mean = [&](const char* name) {
    const checkpoint::SavedArray* const array = saved.arrays().find(name);
    if (array == nullptr) return Doubles(n);
    return checkpoint::SavedArrays::is_per_rank(*array)
               ? mean_of_ranks(saved, name)
               : doubles(saved.arrays().read_all(name, -1));
  };
  const std::vector<float> theta = saved.params();
  const Doubles u = mean("momentum_accumulator");
  const Doubles d = mean("denominator");
  const Doubles e = mean("worker_error");
  const Doubles s = mean("server_error");
  LocalAccount all{mean("exp_avg"), Doubles(n)};
  for (std::size_t i = 0; i < n; ++i)
    all.total[i] = d[i] * (double{theta[i]} + u[i]) + e[i] + s[i];
  return all;
}

// A sync moves nothing but what travels from u into theta and residuals, and
// every step lowers the total by lr m^, whatever the number of ranks.
void expect_lowered(const LocalAccount& before, const LocalAccount& after,
                    int world, std::int64_t t) {
  const auto options =
      std::get<optim::ZeroOneAdamOptions>(config_of("zero_one_adam").optimizer);
  const ParameterLayout layout = awkward_layout();
  const Doubles mean = mean_gradient(world, t);
  for (const Parameter& p : layout.parameters()) {
    const double lr =
        options.groups[p.group].learning_rate.value_or(options.learning_rate) /
        (1 - std::pow(kBeta, static_cast<double>(t)));
    for (std::size_t i = p.offset; i < p.offset + p.size; ++i) {
      const double m = kBeta * before.momentum[i] + (1 - kBeta) * mean[i];
      const double want = before.total[i] - lr * m;
      ASSERT_NEAR(after.total[i], want, 1e-5 * (1 + std::abs(want)))
          << "element " << i;
    }
  }
}

TEST(AllWorldsLocal, StepsOwedByAllAreTakenByAnyNumber) {
  const Config config = config_of("zero_one_adam");
  const std::int64_t steps = is_long() ? 20 : 7;
  const auto moments = is_long() ? std::vector<std::int64_t>{6, 7, 8}
                                 : std::vector<std::int64_t>{8};
  for (const std::int64_t done : moments)
    for (const int before : worlds()) {
      const Folder folder;
      const std::string saved =
          run(before, config, folder.in("saved"), {.steps = done});
      EXPECT_EQ(Saved(saved).manifest().steps_behind, done - 6);
      for (const int after : worlds()) {
        SCOPED_TRACE(fmt::format("{} -> {} after {}", before, after, done));
        const std::string root = folder.in(fmt::format("on{}", after));
        std::vector<std::string> paths;
        comm::run_local_ranks(after, [&](comm::Communicator& comm) {
          Trained training(comm, config);
          static_cast<void>(training.engine.load(saved));
          for (std::int64_t t = done + 1; t <= done + steps; ++t) {
            training.step(t);
            const auto report = training.engine.save(root, {}, kQuick);
            if (comm.rank() == 0) paths.push_back(report.path);
          }
        });
        LocalAccount last = local_account(saved);
        std::int64_t syncs = 0;
        for (std::int64_t t = done + 1; t <= done + steps; ++t) {
          const std::string& path =
              paths[static_cast<std::size_t>(t - done - 1)];
          LocalAccount now = local_account(path);
          SCOPED_TRACE(fmt::format("step {}", t));
          ASSERT_NO_FATAL_FAILURE(expect_lowered(last, now, after, t));
          if (Saved(path).manifest().steps_behind == 0) ++syncs;
          last = std::move(now);
        }
        EXPECT_GE(syncs, 2);
        EXPECT_LT(syncs, steps);
      }
    }
}

}  // namespace

}  // namespace thinwire::engine::all_worlds::all_worlds_local_test
