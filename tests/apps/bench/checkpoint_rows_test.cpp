// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/bench/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "apps/thinwire/bench/scratch_folder.h"
#include "support/folder.h"

namespace thinwire::apps::bench::checkpoint_rows_test {
namespace {

void run(const Variant& variant) {
  if (variant.before) variant.before();
  variant.run();
}

TEST(CheckpointRows, RunAtAwkwardSizesAgainAndAgain) {
  for (const CheckpointRow& row : checkpoint_rows())
    for (const std::size_t elements : {1u, 4097u}) {
      const test::Folder folder;
      const CheckpointRow::Work work = row.prepare(elements, folder.path());
      for (int times = 0; times < 2; ++times) {
        run(work.row);
        run(work.limit);
      }
      EXPECT_GE(work.bytes_per_element, 12) << row.name;
    }
}

TEST(CheckpointRows, SayWhatTheyMeasured) {
  for (const CheckpointRow& row : checkpoint_rows()) {
    ASSERT_EQ(why_not(row, 1000), "");
    const Result result = measure(row, {.elements = 1000, .rounds = 1});
    EXPECT_EQ(result.name, row.name);
    EXPECT_EQ(result.elements, std::min<std::size_t>(1000, row.most_elements));
    EXPECT_EQ(result.limit, row.limit);
    EXPECT_GT(result.of_limit, 0);
  }
}

TEST(CheckpointRows, SayThatThereIsNoRoom) {
  for (const CheckpointRow& row : checkpoint_rows())
    if (row.most_elements > 1'000'000'000) {
      const std::string problem = why_not(row, std::size_t{1} << 45);
      EXPECT_NE(problem.find(row.name + " needs"), std::string::npos);
      EXPECT_NE(problem.find("--elements"), std::string::npos);
    }
}

TEST(ScratchFolder, IsGoneWithAllThatWasInIt) {
  const test::Folder parent;
  {
    const ScratchFolder folder(parent.path());
    std::filesystem::create_directory(folder.path() + "/inner");
    std::ofstream(folder.path() + "/inner/file") << "bytes";
    EXPECT_FALSE(std::filesystem::is_empty(parent.path()));
  }
  EXPECT_TRUE(std::filesystem::is_empty(parent.path()));
  EXPECT_THROW(ScratchFolder("/nowhere"), std::runtime_error);
}

TEST(ScratchFolder, NoticesASignalWhenItIsAsked) {
  const test::Folder parent;
  const ScratchFolder folder(parent.path());
  ScratchFolder::check();
  for (const int number : {SIGTERM, SIGINT}) {
    std::raise(number);
    EXPECT_THROW(ScratchFolder::check(), std::runtime_error);
  }
}

}  // namespace
}  // namespace thinwire::apps::bench::checkpoint_rows_test
