// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "checkpoint/commit/scenarios.h"
#include "support/long.h"
#include "support/ranks.h"

// Power is cut after every single operation, and what was not synced is lost in
// many ways: the newest checkpoint is the one before or the new one, and the
// new one from the moment on that the call has returned.
namespace thinwire::checkpoint::power_cut_test {
namespace {

using test::FaultDisk;
using test::FaultFileSystem;
using test::Loss;
using test::Scenario;

struct Cut {
  Loss loss = Loss::kAll;
  std::uint64_t seed = 0;
};

std::vector<Cut> cuts(std::uint64_t seeds) {
  std::vector<Cut> all = {{Loss::kAll}, {Loss::kNothing}};
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    all.push_back({Loss::kCutFiles, seed});
    all.push_back({Loss::kSomeNames, seed});
  }
  return all;
}

// The disk after every operation of a scenario, the last of them after it has
// returned.
std::vector<FaultDisk> moments(const Scenario& scenario,
                               std::optional<test::Sync> ignored) {
  FaultFileSystem disk(test::kScenarioRanks, scenario.before);
  if (ignored) disk.ignore(*ignored);
  disk.keep_moments();
  test::run_ranks("local", test::kScenarioRanks, [&](comm::Communicator& comm) {
    Root root = test::open_root(disk, comm);
    scenario.act(root, comm);
  });
  return disk.take_moments();
}

// Returns the fault after a restart from this disk; empty if there is none.
std::string problem_of(const FaultDisk& left, const Scenario& scenario,
                       bool has_returned) {
  FaultFileSystem disk(1, left);
  FileSystem& files = disk.of_rank(0);
  const auto before = test::load_dummy(files, test::kScenarioRoot);
  if (!before.problem.empty()) return before.problem;
  if (before.tag != scenario.new_tag &&
      (has_returned || before.tag != scenario.old_tag)) {
    return fmt::format("tag {} is the newest", before.tag.value_or(-1));
  }
  std::string problem;
  test::run_ranks("local", 1, [&](comm::Communicator& comm) {
    Root root = test::open_root(disk, comm);
    const auto after = test::load_dummy(files, test::kScenarioRoot);
    if (!after.problem.empty() || after.tag != before.tag)
      problem = "tidying changed it " + after.problem;
    test::write_dummy(root, comm, {.step = 50, .tag = 99});
  });
  if (test::load_dummy(files, test::kScenarioRoot).tag != 99)
    problem += "the next save is not the newest";
  return problem;
}

// The first problem of a scenario, and when it arose.
std::string first_problem(const Scenario& scenario, std::uint64_t seeds,
                          std::optional<test::Sync> ignored = {}) {
  const std::vector<FaultDisk> all = moments(scenario, ignored);
  for (std::size_t moment = 0; moment < all.size(); ++moment) {
    for (const Cut& cut : cuts(seeds)) {
      const std::string problem =
          problem_of(all[moment].after_power_cut(cut.loss, cut.seed), scenario,
                     moment + 1 == all.size());
      if (problem.empty()) continue;
      return fmt::format("{}: operation {} of {}, loss {}, seed {}: {}",
                         scenario.name, moment + 1, all.size(),
                         static_cast<int>(cut.loss), cut.seed, problem);
    }
  }
  return {};
}

TEST(PowerCut, LeavesTheCheckpointBeforeOrTheNewOne) {
  const std::uint64_t seeds = test::is_long() ? 8 : 2;
  for (const Scenario& scenario : test::scenarios())
    EXPECT_EQ(first_problem(scenario, seeds), "");
}

class ForgottenSync : public testing::TestWithParam<test::Sync> {};

TEST_P(ForgottenSync, IsFound) {
  std::string found;
  for (const Scenario& scenario : test::scenarios()) {
    found = first_problem(scenario, 2, GetParam());
    if (!found.empty()) break;
  }
  EXPECT_NE(found, "") << "nothing is lost without it";
}

INSTANTIATE_TEST_SUITE_P(
    EveryOne, ForgottenSync,
    testing::Values(test::Sync::kData, test::Sync::kRanksDirectory,
                    test::Sync::kManifest, test::Sync::kManifestsName,
                    test::Sync::kRoot, test::Sync::kParentsDirectory));

}  // namespace
}  // namespace thinwire::checkpoint::power_cut_test
