// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/env.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/duration.h"
#include "support/environment.h"
#include "support/errors.h"

namespace thinwire::env::env_test {
namespace {

using std::chrono::milliseconds;
using test::expect_invalid;
using test::ScopedVariable;

TEST(Variables, HaveDefaultsWhenNotSet) {
  for (const char* nothing : {static_cast<const char*>(nullptr), ""}) {
    const ScopedVariable duration("THINWIRE_TIMEOUT", nothing);
    EXPECT_EQ(timeout(), std::chrono::minutes(10));
    const ScopedVariable threads("THINWIRE_NUM_THREADS", nothing);
    EXPECT_EQ(num_threads(), 0);
    const ScopedVariable memory("THINWIRE_PREFETCH", nothing);
    EXPECT_EQ(prefetch(), Prefetch::kAuto);
    const ScopedVariable backend("THINWIRE_COMM", nothing);
    EXPECT_EQ(comm_backend(), std::nullopt);
  }
}

TEST(Variables, AreReadAsTheirKind) {
  const ScopedVariable duration("THINWIRE_TIMEOUT", "500ms");
  EXPECT_EQ(timeout(), milliseconds(500));
  for (const int threads : {1, 2, 1024}) {
    const std::string text = std::to_string(threads);
    const ScopedVariable variable("THINWIRE_NUM_THREADS", text.c_str());
    EXPECT_EQ(num_threads(), threads);
  }
  const ScopedVariable as_it_was("THINWIRE_PREFETCH", "auto");
  EXPECT_EQ(prefetch(), Prefetch::kAuto);
  const ScopedVariable on("THINWIRE_PREFETCH", "on");
  EXPECT_EQ(prefetch(), Prefetch::kOn);
  const ScopedVariable off("THINWIRE_PREFETCH", "off");
  EXPECT_EQ(prefetch(), Prefetch::kOff);
  const ScopedVariable backend("THINWIRE_COMM", "mpi");
  EXPECT_EQ(comm_backend(), "mpi");
}

TEST(Variables, RefuseOtherTextsAndNameVariableAndValue) {
  const struct {
    const char* name;
    const char* range;
    std::vector<const char*> texts;
    void (*read)();
  } cases[] = {
      {"THINWIRE_TIMEOUT", "ms, s, min or h", {"5 s"}, [] { (void)timeout(); }},
      {"THINWIRE_NUM_THREADS",
       "[1, 1024]",
       {"0", "-1", "1025", "two", "2.0", "2 ", " 2", "+2",
        "99999999999999999999"},
       [] { (void)num_threads(); }},
      {"THINWIRE_PREFETCH",
       "auto, on or off",
       {"1", "0", "ON", "Off", "true", "on ", " on", "fast"},
       [] { (void)prefetch(); }},
      {"THINWIRE_RANKS_PER_HOST",
       "an integer in [1, 1073741824]",
       {"0", "-2", "two", "2x", "1073741825", "99999999999999"},
       [] { (void)ranks_per_host(); }}};
  for (const auto& c : cases)
    for (const char* text : c.texts) {
      const ScopedVariable variable(c.name, text);
      expect_invalid({c.name, c.range, "'" + std::string(text) + "'"}, c.read);
    }
}

TEST(LaunchedRanks, IsTheLargestThatALauncherAnnounces) {
  const ScopedVariable no_open_mpi("OMPI_COMM_WORLD_SIZE", nullptr);
  const ScopedVariable no_pmi("PMI_SIZE", nullptr);
  const ScopedVariable no_slurm("SLURM_STEP_NUM_TASKS", nullptr);
  EXPECT_EQ(launched_ranks(), 1);
  for (const char* name :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const ScopedVariable variable(name, "4");
    EXPECT_EQ(launched_ranks(), 4) << name;
  }
  const ScopedVariable open_mpi("OMPI_COMM_WORLD_SIZE", "2");
  const ScopedVariable slurm("SLURM_STEP_NUM_TASKS", "8");
  EXPECT_EQ(launched_ranks(), 8);
}

// They are other programs' variables: nothing of ours fails on them.
TEST(LaunchedRanks, IsOneForOtherTexts) {
  const ScopedVariable no_open_mpi("OMPI_COMM_WORLD_SIZE", nullptr);
  const ScopedVariable no_slurm("SLURM_STEP_NUM_TASKS", nullptr);
  for (const char* text : {"", "many", "-3", "0"}) {
    const ScopedVariable variable("PMI_SIZE", text);
    EXPECT_EQ(launched_ranks(), 1) << text;
  }
}

TEST(RanksPerHost, IsAPositiveNumberOrNotSet) {
  const ScopedVariable none("THINWIRE_RANKS_PER_HOST", nullptr);
  EXPECT_EQ(ranks_per_host(), 0);
  const ScopedVariable eight("THINWIRE_RANKS_PER_HOST", "8");
  EXPECT_EQ(ranks_per_host(), 8);
}

// A launcher inside another one's job counts the ranks of its own.
TEST(LaunchedOnHost, ComesFromTheJobOfThisSize) {
  struct Names {
    const char* all;
    const char* on_host;
  };
  const Names launchers[] = {
      {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
      {"PMI_SIZE", "MPI_LOCALNRANKS"},
      {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}};
  std::vector<std::unique_ptr<ScopedVariable>> unset;
  for (const Names& names : launchers)
    for (const char* name : {names.all, names.on_host})
      unset.push_back(std::make_unique<ScopedVariable>(name, nullptr));
  EXPECT_FALSE(launched_on_host(1).has_value());
  for (const Names& names : launchers) {
    const ScopedVariable all(names.all, "8");
    EXPECT_FALSE(launched_on_host(8).has_value());
    const ScopedVariable on_host(names.on_host, "4");
    EXPECT_FALSE(launched_on_host(4).has_value());
    ASSERT_TRUE(launched_on_host(8).has_value());
    EXPECT_EQ(launched_on_host(8)->value, 4);
    EXPECT_EQ(launched_on_host(8)->variable, names.on_host);
    const ScopedVariable wrong(names.on_host, "some");
    EXPECT_FALSE(launched_on_host(8).has_value());
  }
}

TEST(LaunchedRank, IsTheLaunchersNumber) {
  const ScopedVariable size("OMPI_COMM_WORLD_SIZE", "4");
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    const ScopedVariable no_open_mpi("OMPI_COMM_WORLD_RANK", nullptr);
    const ScopedVariable no_pmi("PMI_RANK", nullptr);
    const ScopedVariable no_slurm("SLURM_PROCID", nullptr);
    EXPECT_EQ(launched_rank(), std::nullopt);
    const ScopedVariable variable(name, "3");
    EXPECT_EQ(launched_rank(), 3) << name;
    for (const char* text : {"4", "-1", "x", "1x"}) {
      const ScopedVariable wrong(name, text);
      EXPECT_EQ(launched_rank(), std::nullopt) << text;
    }
  }
}

// ---- durations

TEST(Duration, IsWrittenAsItIsRead) {
  for (const char* text : {"1ms", "999ms", "1001ms", "5s", "90s", "10min",
                           "61min", "2h", "1000h"}) {
    ASSERT_TRUE(duration_from(text).has_value()) << text;
    EXPECT_EQ(to_text(*duration_from(text)), text);
  }
  EXPECT_EQ(duration_from("500ms"), milliseconds(500));
  EXPECT_EQ(duration_from("05s"), std::chrono::seconds(5));
  EXPECT_EQ(duration_from("60s"), std::chrono::minutes(1));
  EXPECT_EQ(duration_from("2h"), std::chrono::hours(2));
  EXPECT_EQ(duration_from("3600000000ms"), std::chrono::hours(1000));
  EXPECT_EQ(to_text(std::chrono::seconds(3600)), "1h");
}

TEST(Duration, OtherTextsAreRejected) {
  for (const char* text : {"",
                           "5",
                           "s",
                           "5 s",
                           " 5s",
                           "5s ",
                           "-5s",
                           "+5s",
                           "0s",
                           "1.5s",
                           "1e3ms",
                           "5S",
                           "5sec",
                           "5m",
                           "five",
                           "1001h",
                           "60001min",
                           "3600000001ms",
                           "0x5s",
                           "5smin",
                           "9223372036854775807h",
                           "99999999999999999999s"})
    EXPECT_EQ(duration_from(text), std::nullopt) << text;
}

}  // namespace
}  // namespace thinwire::env::env_test
