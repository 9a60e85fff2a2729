// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/find_checkpoints.h"

#include <gtest/gtest.h>

#include "checkpoint/commit/root_directory.h"
#include "checkpoint/dummy.h"

namespace thinwire::checkpoint::retention_test {
namespace {

using test::kRun;
using Names = std::vector<std::string>;

// Newest first, as find_checkpoints() gives them.
std::vector<FoundCheckpoint> found_at(const std::vector<std::int64_t>& steps) {
  std::vector<FoundCheckpoint> found;
  for (const std::int64_t step : steps) {
    FoundCheckpoint one{.name = step_name(step), .complete = true};
    one.manifest.run = kRun;
    one.manifest.step = step;
    one.manifest.save_index = step;
    found.push_back(std::move(one));
  }
  return found;
}

TEST(Retention, KeepsTheNewestAndEverySoManiethStep) {
  const auto found = found_at({50, 40, 30, 20, 10, 0});
  const auto go = [&](const Retention& which, const std::string& loaded) {
    Names all;
    for (std::string& name : superfluous(found, kRun, which, {loaded, -1}))
      all.push_back(name.substr(name.size() - 2));
    return all;
  };
  EXPECT_EQ(go({.keep_last = 0}, ""), Names{});
  EXPECT_EQ(go({.keep_last = 6}, ""), Names{});
  EXPECT_EQ(go({.keep_last = 2}, ""), (Names{"30", "20", "10", "00"}));
  EXPECT_EQ(go({.keep_last = 1, .keep_every = 20}, ""), (Names{"30", "10"}));
  EXPECT_EQ(go({.keep_last = 1}, step_name(40)),
            (Names{"30", "20", "10", "00"}));
  EXPECT_EQ(go({.keep_last = 1}, step_name(30)),
            (Names{"40", "30", "20", "10", "00"}));
}

// A run that went on from step 20 has left 40 and 30, which were there then.
TEST(Retention, CountsWhatWasSavedSinceTheLoad) {
  auto found = found_at({50, 40, 30, 20, 10});
  const LoadedFrom loaded{step_name(20), found[1].manifest.save_index};
  EXPECT_EQ(superfluous(found, kRun, {.keep_last = 1}, loaded),
            (Names{step_name(40), step_name(30), step_name(10)}));
}

TEST(Retention, LeavesAloneWhatIsNotThisRuns) {
  auto found = found_at({50, 40, 30, 20, 10});
  found[1].manifest.run = test::kOtherRun;
  found[2].complete = false;
  found[3].name = "best";
  EXPECT_EQ(superfluous(found, kRun, {.keep_last = 1}, {}),
            (Names{step_name(10)}));
  EXPECT_EQ(superfluous(found, kRun, {.keep_last = 2}, {}), Names{});
}

TEST(Retention, KeepsTheNewestWhoseParametersAreFinite) {
  auto found = found_at({50, 40, 30, 20, 10});
  found[0].manifest.finite = found[1].manifest.finite = false;
  EXPECT_EQ(superfluous(found, kRun, {.keep_last = 1}, {}),
            (Names{step_name(40), step_name(20), step_name(10)}));
  EXPECT_EQ(superfluous(found, kRun, {.keep_last = 3}, {}),
            (Names{step_name(20), step_name(10)}));
}

}  // namespace
}  // namespace thinwire::checkpoint::retention_test
