// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <system_error>

#include "checkpoint/commit/scenarios.h"
#include "support/long.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint::faults_test {
namespace {

using test::FaultDisk;
using test::FaultFileSystem;
using test::load_dummy;
using test::Loss;
using test::on_ranks;
using test::Scenario;
using Fault = FaultFileSystem::Fault;

const std::string kRoot = test::kScenarioRoot;

// ---- Every single operation fails once, or from then on: all ranks throw the
// same error, the checkpoint before loads, and the next save works.

struct Outcome {
  std::array<std::string, test::kScenarioRanks> errors{};  // empty: none
  bool has_failed = false;
  test::LoadedDummy loaded{};
  bool has_partial = false;
  test::LoadedDummy next{};
};

bool has_partial(FaultFileSystem& disk) {
  FileSystem& files = disk.of_rank(0);
  if (!files.exists(kRoot)) return false;
  const auto names = files.list(kRoot);
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name.find(".partial-") != std::string::npos;
  });
}

void run_rank(const Scenario& scenario, FaultFileSystem& disk,
              comm::Communicator& comm, Outcome& outcome) {
  std::unique_ptr<Root> root;
  const auto open = [&] { root.reset(new Root(test::open_root(disk, comm))); };
  try {
    open();
    scenario.act(*root, comm);
  } catch (const Error& error) {
    outcome.errors[static_cast<std::size_t>(comm.rank())] = error.what();
  }
  comm.barrier();
  if (comm.rank() == 0) {
    outcome.has_failed = disk.has_failed();
    disk.set_fault({});
    outcome.loaded = load_dummy(disk.of_rank(0), kRoot);
    outcome.has_partial = has_partial(disk);
  }
  comm.barrier();
  if (!root) open();
  test::write_dummy(*root, comm, {.step = 50, .tag = 99});
}

Outcome run(const Scenario& scenario, const Fault& fault) {
  FaultFileSystem disk(test::kScenarioRanks, scenario.before);
  disk.set_fault(fault);
  Outcome outcome;
  on_ranks(test::kScenarioRanks, [&](comm::Communicator& comm) {
    run_rank(scenario, disk, comm, outcome);
  });
  outcome.next = load_dummy(disk.of_rank(0), kRoot);
  return outcome;
}

void check(const Scenario& scenario, const Fault& fault,
           const Outcome& outcome) {
  const std::string& error = outcome.errors[0];
  for (const std::string& other : outcome.errors) EXPECT_EQ(other, error);
  EXPECT_EQ(outcome.loaded.problem, "");
  EXPECT_TRUE(outcome.loaded.tag == scenario.new_tag ||
              (!error.empty() && outcome.loaded.tag == scenario.old_tag))
      << outcome.loaded.tag.value_or(-1);
  if (!error.empty()) {
    EXPECT_EQ(error.find("rank "), 0U) << error;
    EXPECT_NE(error.find(std::generic_category().message(fault.number)),
              error.npos)
        << error;
    EXPECT_NE(error.find(": /"), error.npos) << error;
    if (scenario.writes && !fault.lasts) {
      EXPECT_FALSE(outcome.has_partial);
    }
  }
  EXPECT_EQ(outcome.next.tag, 99);
  EXPECT_EQ(outcome.next.problem, "");
}

// All faults of operation k; in short form one of them.
std::vector<Fault> faults(std::size_t k) {
  std::vector<Fault> all;
  for (const bool lasts : {false, true}) {
    for (const int number : {ENOSPC, EIO, EDQUOT, EACCES})
      all.push_back({.operation = k, .number = number, .lasts = lasts});
    all.push_back({k, ENOSPC, /*writes_half=*/true, lasts});
  }
  if (test::is_long()) return all;
  return {all[k % 5], all[5 + (k + 2) % 5]};
}

TEST(FailingOperation, ThrowsOnAllRanksAndChangesNothing) {
  for (const Scenario& scenario : test::scenarios()) {
    std::size_t told = 0;
    for (std::size_t k = 1;; ++k) {
      bool has_failed = false;
      for (const Fault& fault : faults(k)) {
        SCOPED_TRACE(fmt::format(
            "{}: operation {}, errno {}{}{}", scenario.name, k, fault.number,
            fault.writes_half ? ", half" : "", fault.lasts ? ", lasting" : ""));
        const Outcome outcome = run(scenario, fault);
        has_failed = has_failed || outcome.has_failed;
        check(scenario, fault, outcome);
        if (HasFailure()) return;
        if (!outcome.errors[0].empty()) ++told;
      }
      if (!has_failed) break;
    }
    EXPECT_GT(told, 5U) << scenario.name;
  }
}

// ---- Power is cut after every single operation, and what was not synced is
// lost in many ways: the newest checkpoint is the one before or the new one,
// and the new one from the moment on that the call has returned.

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
  on_ranks(test::kScenarioRanks, [&](comm::Communicator& comm) {
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
  const auto before = load_dummy(files, kRoot);
  if (!before.problem.empty()) return before.problem;
  if (before.tag != scenario.new_tag &&
      (has_returned || before.tag != scenario.old_tag)) {
    return fmt::format("tag {} is the newest", before.tag.value_or(-1));
  }
  std::string problem;
  on_ranks(1, [&](comm::Communicator& comm) {
    Root root = test::open_root(disk, comm);
    const auto after = load_dummy(files, kRoot);
    if (!after.problem.empty() || after.tag != before.tag)
      problem = "tidying changed it " + after.problem;
    test::write_dummy(root, comm, {.step = 50, .tag = 99});
  });
  if (load_dummy(files, kRoot).tag != 99)
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
}  // namespace thinwire::checkpoint::faults_test
