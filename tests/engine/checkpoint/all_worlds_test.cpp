// SPDX-License-Identifier: Apache-2.0
// From any number of ranks to any other: what moves, what is owed, and that
// training goes on. THINWIRE_TEST_LONG takes all pairs of 1, 2, 3, 4, 5, 8.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/by_hand.h"
#include "engine/checkpoint/saved.h"
#include "support/folder.h"
#include "support/long.h"
#include "support/same_bits.h"
#include "support/sanitizers.h"
#include "thinwire/comm/local.h"

namespace thinwire::engine::test::all_worlds_test {
namespace {

using optim::Axis;
using optim::Sharing;
using Doubles = std::vector<double>;

// Returns the numbers of ranks that are tried.
std::vector<int> worlds() {
  if (!is_long()) return {1, 2, 3};
  return fewer_if_sanitized<int>({1, 2, 3, 4, 5, 8}, 3);
}

// Sizes around those of blocks, in two groups.
ParameterLayout awkward_layout() {
  return ParameterLayout::of({{"empty", {0}, 0},
                              {"one", {1}, 0},
                              {"b1023", {1023}, 1},
                              {"b1024", {1024}, 0},
                              {"b1025", {1025}, 1},
                              {"b4097", {4097}, 0}});
}

// Several buckets, and nothing is clipped.
Config config_of(const std::string& optimizer) {
  Config config{.optimizer = optimizer_case(optimizer)};
  config.comm.bucket_elements = 2048;
  return config;
}

// Every element has a gradient on every rank, and none stands out.
std::vector<float> gradient(std::int64_t t, int rank) {
  const std::size_t n = awkward_layout().size();
  std::vector<float> values = initial_params(n, 4);
  const auto own = initial_params(n, static_cast<int>(16 * t) + rank + 100);
  for (std::size_t i = 0; i < n; ++i) values[i] = 0.3f * values[i] + own[i];
  return values;
}

struct Trained : Sharded {
  Trained(comm::Communicator& c, const Config& config)
      : Sharded(c, config, {.layout = awkward_layout()}) {}

  EngineReport step(std::int64_t t) {
    backward_of(gradient(t, comm.rank()));
    return engine.step();
  }
};

struct Plan {
  std::string from{};  ///< Loaded, unless empty.
  std::int64_t first = 1;
  std::int64_t steps = 0;
};

// Ranks that train as planned and save; returns the checkpoint. A save
// compares the ranks' replicas, so they are equal then.
std::string run(int world, const Config& config, const std::string& root,
                const Plan& plan) {
  std::string saved;
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    Trained training(comm, config);
    if (!plan.from.empty()) training.engine.load(plan.from);
    for (std::int64_t t = plan.first; t < plan.first + plan.steps; ++t)
      EXPECT_TRUE(training.step(t).applied);
    const auto report = training.engine.save(root, {}, kQuick);
    if (comm.rank() == 0) saved = report.path;
  });
  return saved;
}

Doubles doubles(const Buffer& values) {
  std::vector<float> all(values.size());
  kernels::convert(values.view(), all);
  return {all.begin(), all.end()};
}

// Returns the mean of an array over the ranks that saved it.
Doubles mean_of_ranks(Saved& saved, const std::string& name) {
  Doubles mean;
  const int world = saved.manifest().world;
  for (int r = 0; r < world; ++r) {
    const Doubles own = doubles(saved.arrays().read_all(name, r));
    mean.resize(std::max(mean.size(), own.size()));
    for (std::size_t i = 0; i < own.size(); ++i) mean[i] += own[i] / world;
  }
  return mean;
}

constexpr double kBeta = 0.9;

Doubles mean_gradient(int world, std::int64_t t) {
  Doubles mean(awkward_layout().size());
  for (int r = 0; r < world; ++r) {
    const std::vector<float> own = gradient(t, r);
    for (std::size_t i = 0; i < own.size(); ++i)
      mean[i] += double{own[i]} / world;
  }
  return mean;
}

// ---- what moves

double largest(const Doubles& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

// Every rank has the mean, rounded once.
void expect_means(Saved& before, Saved& after, const std::string& name) {
  const Doubles want = mean_of_ranks(before, name);
  const double sum_error = before.manifest().world * 0x1p-52 * largest(want);
  for (int r = 0; r < after.manifest().world; ++r) {
    const Doubles got = doubles(after.arrays().read_all(name, r));
    ASSERT_EQ(got.size(), want.size()) << name;
    for (std::size_t i = 0; i < want.size(); ++i)
      ASSERT_LE(std::abs(got[i] - want[i]),
                0x1p-24 * std::abs(want[i]) + sum_error)
          << name << ' ' << i;
  }
}

void expect_same_values(Saved& before, Saved& after, const std::string& name,
                        int rank) {
  const Buffer want = before.arrays().read_all(name, rank);
  const Buffer got = after.arrays().read_all(name, rank);
  EXPECT_TRUE(same_bytes(got.view(), want.view())) << name;
}

// `after` was saved by ranks that had loaded `before` and done nothing.
void expect_moved(const std::string& path_before,
                  const std::string& path_after) {
  Saved before(path_before);
  Saved after(path_after);
  EXPECT_EQ(after.params(), before.params());
  EXPECT_EQ(after.masters(), before.masters());
  EXPECT_EQ(after.manifest().steps_behind, before.manifest().steps_behind);
  EXPECT_EQ(after.manifest().phase, before.manifest().phase);
  EXPECT_EQ(after.manifest().scalars.integer("step"),
            before.manifest().scalars.integer("step"));
  const bool is_same_world = before.manifest().world == after.manifest().world;
  for (const checkpoint::SavedArray& array : before.manifest().arrays) {
    if (array.is_parameters || array.axis == Axis::kRange) continue;
    ASSERT_NE(after.find(array.name), nullptr) << array.name;
    if (!checkpoint::SavedArrays::is_per_rank(array))
      expect_same_values(before, after, array.name, -1);
    else if (is_same_world)
      for (int r = 0; r < before.manifest().world; ++r)
        expect_same_values(before, after, array.name, r);
    else if (array.sharing == Sharing::kMean)
      expect_means(before, after, array.name);
  }
}

class AllWorlds : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Optimizers, AllWorlds,
                         ::testing::Values("adam", "lamb", "onebit_adam",
                                           "onebit_lamb", "zero_one_adam"),
                         [](const auto& tested) { return tested.param; });

TEST_P(AllWorlds, LoadCheckpointsOfAnyOtherAndContinue) {
  const Config config = config_of(GetParam());
  const auto moments = fewer_if_sanitized<std::int64_t>({5, 1, 3, 4, 6, 7}, 1);
  const std::size_t taken = is_long() ? moments.size() : 1;
  for (const std::int64_t steps : std::span(moments).first(taken))
    for (const int before : worlds()) {
      const Folder folder;
      const std::string saved =
          run(before, config, folder.in("saved"), {.steps = steps});
      for (const int after : worlds()) {
        SCOPED_TRACE(
            fmt::format("{} -> {} after step {}", before, after, steps));
        const std::string to = folder.in(fmt::format("to{}", after));
        const std::string moved = run(after, config, to, {.from = saved});
        expect_moved(saved, moved);
        const std::string on = folder.in(fmt::format("on{}", after));
        const std::string later = run(
            after, config, on, {.from = saved, .first = steps + 1, .steps = 4});
        EXPECT_NE(Saved(later).masters(), Saved(saved).masters());
      }
    }
}

// ---- what is owed

// Sums and means over all ranks.
struct Account {
  Doubles momentum;
  Doubles owed;   // the mean of the ranks' residuals, and the servers'
  Doubles unit;   // of what travels, per element
  Doubles total;  // momenta and what is owed; 0/1 Adam: d (theta + u) and that
};

Account account(const std::string& path, bool is_local) {
  Saved saved(path);
  const std::size_t n = awkward_layout().size();
  const auto mean = [&](const char* name) {
    const checkpoint::SavedArray* const array = saved.find(name);
    if (array == nullptr) return Doubles(n);
    return checkpoint::SavedArrays::is_per_rank(*array)
               ? mean_of_ranks(saved, name)
               : doubles(saved.arrays().read_all(name, -1));
  };
  Account all{mean("exp_avg"), mean("worker_error"), Doubles(n, 1), Doubles(n)};
  const Doubles of_servers = mean("server_error");
  if (saved.find("scaling_coeff") != nullptr) {
    const Buffer scales = saved.arrays().read_all("scaling_coeff", -1);
    const ParameterLayout layout = awkward_layout();
    for (std::size_t k = 0; k < layout.parameters().size(); ++k) {
      const Parameter& p = layout.parameters()[k];
      std::fill_n(all.unit.begin() + static_cast<std::ptrdiff_t>(p.offset),
                  p.size, scales.as<double>()[k]);
    }
  }
  const std::vector<float> theta = saved.params();
  const Doubles u = mean("momentum_accumulator");
  const Doubles d = mean("denominator");
  for (std::size_t i = 0; i < n; ++i) {
    all.owed[i] += of_servers[i];
    all.total[i] = all.owed[i] + (is_local ? d[i] * (double{theta[i]} + u[i])
                                           : all.unit[i] * all.momentum[i]);
  }
  return all;
}

// Every step of 0/1 Adam lowers the total by lr m^, and a sync moves nothing
// but what travels. Other optimizers keep y + e + d = x + e + d of the step
// before, where x is the mean of the ranks' momenta.
void expect_step(const Config& config, const Account& before,
                 const Account& after, int world, std::int64_t t) {
  const auto* const local =
      std::get_if<optim::ZeroOneAdamOptions>(&config.optimizer);
  const ParameterLayout layout = awkward_layout();
  const Doubles mean = mean_gradient(world, t);
  for (const Parameter& p : layout.parameters()) {
    const double lr = local == nullptr
                          ? 0
                          : local->groups[p.group].learning_rate.value_or(
                                local->learning_rate) /
                                (1 - std::pow(kBeta, static_cast<double>(t)));
    for (std::size_t i = p.offset; i < p.offset + p.size; ++i) {
      const double m = kBeta * before.momentum[i] + (1 - kBeta) * mean[i];
      const double want = local == nullptr ? before.unit[i] * m + before.owed[i]
                                           : before.total[i] - lr * m;
      ASSERT_NEAR(after.total[i], want, 1e-5 * (1 + std::abs(want)))
          << "element " << i;
    }
  }
}

class AllWorldsOwe : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Optimizers, AllWorldsOwe,
                         ::testing::Values("onebit_adam", "onebit_lamb",
                                           "zero_one_adam"),
                         [](const auto& tested) { return tested.param; });

// Step by step, so the sum over all steps is what it would be. 0/1 Adam is
// between two syncs.
TEST_P(AllWorldsOwe, RestoredResidualsUntilTheyAreSent) {
  const Config config = config_of(GetParam());
  const bool is_local = GetParam() == "zero_one_adam";
  const std::int64_t steps = is_long() ? 20 : is_local ? 7 : 3;
  const std::vector<std::int64_t> moments =
      !is_local    ? std::vector<std::int64_t>{6}
      : !is_long() ? std::vector<std::int64_t>{8}
                   : std::vector<std::int64_t>{6, 7, 8};
  for (const std::int64_t done : moments)
    for (const int before : worlds()) {
      const Folder folder;
      const std::string saved =
          run(before, config, folder.in("saved"), {.steps = done});
      const Account first = account(saved, is_local);
      if (is_local)
        EXPECT_EQ(Saved(saved).manifest().steps_behind, done - 6);
      else
        EXPECT_EQ(largest(first.owed) > 0, before > 1);
      for (const int after : worlds()) {
        SCOPED_TRACE(fmt::format("{} -> {} after {}", before, after, done));
        const std::string root = folder.in(fmt::format("on{}", after));
        std::vector<std::string> paths;
        comm::run_local_ranks(after, [&](comm::Communicator& comm) {
          Trained training(comm, config);
          training.engine.load(saved);
          for (std::int64_t t = done + 1; t <= done + steps; ++t) {
            training.step(t);
            const auto report = training.engine.save(root, {}, kQuick);
            if (comm.rank() == 0) paths.push_back(report.path);
          }
        });
        Account last = first;
        std::int64_t syncs = 0;
        for (std::int64_t t = done + 1; t <= done + steps; ++t) {
          const auto& path = paths[static_cast<std::size_t>(t - done - 1)];
          Account now = account(path, is_local);
          SCOPED_TRACE(fmt::format("step {}", t));
          ASSERT_NO_FATAL_FAILURE(expect_step(config, last, now, after, t));
          if (Saved(path).manifest().steps_behind == 0) ++syncs;
          last = std::move(now);
        }
        if (is_local) {
          EXPECT_GE(syncs, 2);
          EXPECT_LT(syncs, steps);
        } else {
          EXPECT_EQ(largest(last.owed) > 0, after > 1);
        }
      }
    }
}

}  // namespace
}  // namespace thinwire::engine::test::all_worlds_test
