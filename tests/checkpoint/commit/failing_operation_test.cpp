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
#include "support/ranks.h"
#include "thinwire/core/error.h"

// Every single operation fails once, or from then on: all ranks throw the same
// error, the checkpoint before loads, and the next save works.
namespace thinwire::checkpoint::failing_operation_test {
namespace {

using test::FaultFileSystem;
using test::Scenario;
using Fault = FaultFileSystem::Fault;

struct Outcome {
  std::array<std::string, test::kScenarioRanks> errors{};  // empty: none
  bool has_failed = false;
  test::LoadedDummy loaded{};
  bool has_partial = false;
  test::LoadedDummy next{};
};

bool has_partial(FaultFileSystem& disk) {
  FileSystem& files = disk.of_rank(0);
  if (!files.exists(test::kScenarioRoot)) return false;
  const auto names = files.list(test::kScenarioRoot);
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
    outcome.loaded = test::load_dummy(disk.of_rank(0), test::kScenarioRoot);
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
  test::run_ranks("local", test::kScenarioRanks, [&](comm::Communicator& comm) {
    run_rank(scenario, disk, comm, outcome);
  });
  outcome.next = test::load_dummy(disk.of_rank(0), test::kScenarioRoot);
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

TEST(FailingOperation, IsToldOnAllRanksAndChangesNothing) {
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

}  // namespace
}  // namespace thinwire::checkpoint::failing_operation_test
