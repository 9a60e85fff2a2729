// SPDX-License-Identifier: Apache-2.0
// From any number of ranks to any other: what moves, what is owed, and that
// training goes on.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <span>

#include "engine/checkpoint/all_worlds.h"
#include "support/folder.h"
#include "support/same_bits.h"

namespace thinwire::engine::all_worlds::all_worlds_test {

namespace {

using optim::Axis;
using optim::Sharing;
using thinwire::test::Folder;

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
  EXPECT_TRUE(thinwire::test::same_bytes(got.view(), want.view())) << name;
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
    ASSERT_NE(after.arrays().find(array.name), nullptr) << array.name;
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

TEST_P(AllWorlds, LoadWhatAnyOtherHasSavedAndGoOn) {
  const Config config = config_of(GetParam());
  const auto moments =
      thinwire::test::fewer_if_sanitized<std::int64_t>({5, 1, 3, 4, 6, 7}, 1);
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

// The momentum, and the mean of the ranks' residuals plus the servers'.
struct Account {
  Doubles momentum;
  Doubles owed;
  Doubles unit;  ///< Of what travels, per element.
};

Account account(const std::string& path) {
  Saved saved(path);
  const auto has = [&](const char* name) {
    return saved.arrays().find(name) != nullptr;
  };
  const std::size_t n = awkward_layout().size();
  Account all{doubles(saved.arrays().read_all("exp_avg", -1)), Doubles(n),
              Doubles(n, 1)};
  const auto add = [&](const Doubles& values) {
    for (std::size_t i = 0; i < values.size(); ++i) all.owed[i] += values[i];
  };
  if (has("worker_error")) add(mean_of_ranks(saved, "worker_error"));
  if (has("server_error"))
    add(doubles(saved.arrays().read_all("server_error", -1)));
  if (!has("scaling_coeff")) return all;
  const Buffer scales = saved.arrays().read_all("scaling_coeff", -1);
  const ParameterLayout layout = awkward_layout();
  for (std::size_t k = 0; k < layout.parameters().size(); ++k) {
    const Parameter& p = layout.parameters()[k];
    std::fill_n(all.unit.begin() + static_cast<std::ptrdiff_t>(p.offset),
                p.size, scales.as<double>()[k]);
  }
  return all;
}

// y + e + d = x + e + d of before, x being the mean of the ranks' momenta.
void expect_nothing_lost(const Account& before, const Account& after, int world,
                         std::int64_t t) {
  const Doubles mean = mean_gradient(world, t);
  for (std::size_t i = 0; i < mean.size(); ++i) {
    const double x = kBeta * before.momentum[i] + (1 - kBeta) * mean[i];
    const double want = before.unit[i] * x + before.owed[i];
    const double got = after.unit[i] * after.momentum[i] + after.owed[i];
    ASSERT_NEAR(got, want, 1e-5 * (1 + std::abs(want))) << "element " << i;
  }
}

class AllWorldsOwe : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Optimizers, AllWorldsOwe,
                         ::testing::Values("onebit_adam", "onebit_lamb"),
                         [](const auto& tested) { return tested.param; });

// Step by step, so the sum over all steps is what it would be.
TEST_P(AllWorldsOwe, WhatTheyHaveLoadedUntilItIsDelivered) {
  const Config config = config_of(GetParam());
  const std::int64_t steps = is_long() ? 20 : 3;
  for (const int before : worlds()) {
    const Folder folder;
    const std::string saved =
        run(before, config, folder.in("saved"), {.steps = 6});
    const Account first = account(saved);
    EXPECT_EQ(largest(first.owed) > 0, before > 1);
    for (const int after : worlds()) {
      SCOPED_TRACE(fmt::format("{} -> {}", before, after));
      const std::string root = folder.in(fmt::format("on{}", after));
      std::vector<std::string> paths;
      comm::run_local_ranks(after, [&](comm::Communicator& comm) {
        Trained training(comm, config);
        static_cast<void>(training.engine.load(saved));
        for (std::int64_t t = 7; t < 7 + steps; ++t) {
          training.step(t);
          const auto report = training.engine.save(root, {}, kQuick);
          if (comm.rank() == 0) paths.push_back(report.path);
        }
      });
      Account last = first;
      for (std::int64_t t = 7; t < 7 + steps; ++t) {
        Account now = account(paths[static_cast<std::size_t>(t - 7)]);
        SCOPED_TRACE(fmt::format("step {}", t));
        ASSERT_NO_FATAL_FAILURE(expect_nothing_lost(last, now, after, t));
        last = std::move(now);
      }
      EXPECT_EQ(largest(last.owed) > 0, after > 1);
    }
  }
}

}  // namespace

}  // namespace thinwire::engine::all_worlds::all_worlds_test
