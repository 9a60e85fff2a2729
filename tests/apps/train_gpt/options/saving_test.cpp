// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/options/saving.h"

#include <gtest/gtest.h>

#include <csignal>

#include "apps/train_gpt/options/parsing.h"
#include "support/environment.h"

namespace thinwire::train_gpt::saving_test {
namespace {

using Signals = std::vector<int>;
using std::chrono::minutes;
using test::ScopedVariable;

Saving saving(std::vector<const char*> arguments) {
  return parse(std::move(arguments)).saving;
}

TEST(SavingFlags, NothingIsSavedUnlessAskedFor) {
  const Saving none = saving({});
  EXPECT_FALSE(none.is_periodic());
  EXPECT_EQ(none.files.root, "out/train_gpt/checkpoints");
  EXPECT_EQ(none.files.keep_last, 2);
  EXPECT_EQ(none.files.keep_every, 0);
  EXPECT_TRUE(none.files.asynchronous);
  EXPECT_EQ(none.resume, "");
  EXPECT_EQ(none.signals, Signals{SIGUSR1});
}

TEST(SavingFlags, AreAllRead) {
  const Saving all = saving(
      {"--out", "o", "--save-every", "20", "--keep-last", "5", "--keep-every",
       "100", "--save-sync", "--checkpoints", "c", "--resume", "c/step-1",
       "--resume-fallback", "--resume-new-data", "--save-on", "USR2,TERM,INT"});
  EXPECT_EQ(all.files.every_steps, 20);
  EXPECT_EQ(all.files.every.count(), 0);
  EXPECT_EQ(all.files.keep_last, 5);
  EXPECT_EQ(all.files.keep_every, 100);
  EXPECT_FALSE(all.files.asynchronous);
  EXPECT_EQ(all.files.root, "c");
  EXPECT_EQ(all.resume, "c/step-1");
  EXPECT_TRUE(all.resume_fallback);
  EXPECT_TRUE(all.resume_new_data);
  EXPECT_EQ(all.signals, (Signals{SIGUSR2, SIGTERM, SIGINT}));
}

TEST(SavingFlags, TimesAndStepsAreToldApart) {
  const Saving timed = saving({"--save-every", "10min"});
  EXPECT_EQ(timed.files.every, minutes(10));
  EXPECT_EQ(timed.files.every_steps, 0);
  EXPECT_TRUE(timed.is_periodic());
  for (const char* wrong : {"0", "-1", "10 min", "min", "1.5", "9999999999"})
    expect_usage_error({"--save-every must be steps in 1 .. ", "10min", wrong},
                       [&] {
                         return saving({"--save-every", wrong});
                       });
}

TEST(SavingFlags, ResumeAloneIsAuto) {
  EXPECT_EQ(saving({"--resume"}).resume, kAutoResume);
  EXPECT_EQ(saving({"--resume", "--steps", "7"}).resume, kAutoResume);
  EXPECT_EQ(saving({"--resume", "auto"}).resume, kAutoResume);
  EXPECT_EQ(saving({"--resume", "a", "--resume", "b"}).resume, "b");
}

TEST(SavingFlags, NameRangeAndValue) {
  expect_usage_error({"--keep-last must be in 0 .. ", "-1"}, [] {
    return saving({"--keep-last", "-1"});
  });
  expect_usage_error({"--keep-every", "-2"}, [] {
    return saving({"--keep-every", "-2"});
  });
  expect_usage_error({"--save-on must be some of USR1, USR2, TERM, INT", "HUP"},
                     [] {
                       return saving({"--save-on", "USR1,HUP"});
                     });
  expect_usage_error({"--save-on"}, [] { return saving({"--save-on", ""}); });
  expect_usage_error({"--resume-fallback needs --resume"},
                     [] { return saving({"--resume-fallback"}); });
  expect_usage_error({"--resume-new-data needs --resume"},
                     [] { return saving({"--resume-new-data"}); });
}

// SIGTERM is mpirun's word for a rank that has died.
TEST(SavingFlags, SignalsDependOnTheLauncher) {
  const Signals all{SIGUSR1, SIGTERM, SIGINT};
  EXPECT_EQ(saving({"--save-every", "5"}).signals, all);
  EXPECT_EQ(saving({"--resume"}).signals, all);
  EXPECT_EQ(saving({"--checkpoints", "c"}).signals, all);
  {
    const ScopedVariable size("OMPI_COMM_WORLD_SIZE", "4");
    EXPECT_EQ(saving({"--save-every", "5"}).signals, Signals{SIGUSR1});
    EXPECT_EQ(saving({"--save-on", "USR2"}).signals, Signals{SIGUSR2});
    expect_usage_error({"--save-on must be USR1 or USR2 under mpirun", "TERM"},
                       [] {
                         return saving({"--save-on", "TERM"});
                       });
  }
  const ScopedVariable size("PMI_SIZE", "4");
  EXPECT_EQ(saving({"--save-every", "5"}).signals, Signals{SIGUSR1});
  const ScopedVariable tasks("SLURM_STEP_NUM_TASKS", "4");
  EXPECT_EQ(saving({"--save-every", "5"}).signals, all);
}

TEST_F(ConfigFile, SaysWhatNoFlagDoes) {
  write(R"({"thinwire": {"checkpoint": {"root": "C", "every_steps": 9,
            "keep_last": 4, "asynchronous": false}},
            "train_gpt": {"resume": "auto", "save_on": "USR2"}})");
  const Saving file = saving({"--config", path.c_str()});
  EXPECT_EQ(file.files.root, "C");
  EXPECT_EQ(file.files.every_steps, 9);
  EXPECT_EQ(file.files.keep_last, 4);
  EXPECT_FALSE(file.files.asynchronous);
  EXPECT_EQ(file.resume, kAutoResume);
  EXPECT_EQ(file.signals, Signals{SIGUSR2});
  const Saving flags = saving({"--config", path.c_str(), "--save-every", "2h",
                               "--keep-last", "1", "--checkpoints", "D"});
  EXPECT_EQ(flags.files.root, "D");
  EXPECT_EQ(flags.files.every_steps, 0);
  EXPECT_EQ(flags.files.every, std::chrono::hours(2));
  EXPECT_EQ(flags.files.keep_last, 1);
}

}  // namespace
}  // namespace thinwire::train_gpt::saving_test
