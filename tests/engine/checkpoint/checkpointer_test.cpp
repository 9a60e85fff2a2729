// SPDX-License-Identifier: Apache-2.0
// When runs are saved, what stays, and how signals stop them.
#include "thinwire/engine/checkpointer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "engine/by_hand.h"
#include "support/counting_group.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/kept_log.h"
#include "support/ranks.h"
#include "thinwire/checkpoint/inspect.h"

namespace thinwire::engine::test::checkpointer_test {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

class Checkpoints : public ::testing::Test {
 protected:
  // The steps of the complete ones.
  [[nodiscard]] std::set<std::int64_t> steps() const {
    std::set<std::int64_t> steps;
    if (!fs::exists(root)) return steps;
    for (const auto& its : checkpoint::inspect(root.string()))
      if (its.complete) steps.insert(its.step);
    return steps;
  }
  [[nodiscard]] CheckpointerOptions options(
      std::int64_t every_steps = 0) const {
    return {.root = root.string(),
            .every_steps = every_steps,
            .keep_last = 0,
            .asynchronous = false,
            .save = {.durable = false}};
  }

  const Folder folder;
  const fs::path root = folder.in("checkpoints");
};

// A run that is saved as the options say.
struct Saving {
  Saving(comm::Communicator& comm, const config::Config& config,
         const CheckpointerOptions& how)
      : driven(comm, config), checkpointer(driven.engine, how) {}

  EngineReport step(std::int64_t t, bool overflows = false) {
    const auto report = driven.step({.step = t, .overflows = overflows});
    failure = checkpointer.after_step(report);
    return report;
  }
  void steps(std::int64_t count) {
    for (std::int64_t t = 1; t <= count; ++t) step(t);
  }
  // Until it is stopped; asks for that after step `from`.
  std::int64_t until_stopped(std::int64_t from,
                             const std::function<void()>& ask) {
    std::int64_t t = 0;
    while (!checkpointer.stop_requested() && t < 1000) {
      const auto report = driven.step({.step = ++t});
      if (t == from) ask();
      checkpointer.after_step(report);
    }
    EXPECT_LT(t, 1000);
    return t;
  }

  Sharded driven;
  Checkpointer checkpointer;
  std::string failure;  // found in the newest step
};

TEST_F(Checkpoints, AreSavedAtAnIntervalOfSteps) {
  for (const bool asynchronous : {false, true})
    for (const int world : {1, 3}) {
      fs::remove_all(root);
      const KeptLog log;
      comm::run_local_ranks(world, [&](comm::Communicator& comm) {
        CheckpointerOptions how = options(3);
        how.asynchronous = asynchronous;
        Saving run(comm, config_of("adam"), how);
        Checkpointer& checkpointer = run.checkpointer;
        run.steps(7);
        checkpointer.finish();
        EXPECT_EQ(checkpointer.totals().saves, 3);
        EXPECT_EQ(checkpointer.totals().failed, 0);
        EXPECT_GT(checkpointer.totals().held_seconds, 0);
        EXPECT_EQ(checkpointer.totals().newest,
                  (root / "step-0000000007").string());
        checkpointer.finish();  // nothing is new
        EXPECT_EQ(checkpointer.totals().saves, 3);
        EXPECT_FALSE(checkpointer.stop_requested());
      });
      EXPECT_EQ(steps(), (std::set<std::int64_t>{3, 6, 7}));
      EXPECT_EQ(log.lines().size(), 3u) << "of rank 0";
      EXPECT_EQ(log.count("saved " + root.string()), 3u);
      EXPECT_EQ(log.count("training held for"), 3u);
    }
}

TEST_F(Checkpoints, OverATransportWithoutGroupsAreSynchronous) {
  for (const int world : {1, 2}) {
    fs::remove_all(root);
    CountingGroup group(world, 1, /*splits=*/false);
    group.run([&](comm::Communicator& comm) {
      CheckpointerOptions how = options(2);
      how.asynchronous = true;
      Sharded driven(comm, config_of("onebit_adam"));
      const std::initializer_list<std::string_view> why = {
          "asynchronous must be false", "'counting' has no groups"};
      expect_invalid(why, [&] { Checkpointer(driven.engine, how); });
      expect_invalid(why, [&] {
        driven.engine.save(root.string(), {}, {.asynchronous = true});
      });
      how.asynchronous = false;
      Saving run(comm, config_of("onebit_adam"), how);
      run.steps(5);
      run.checkpointer.finish();
      EXPECT_EQ(driven.engine.load(root.string()).step, 5);
    });
    EXPECT_EQ(steps(), (std::set<std::int64_t>{2, 4, 5}));
  }
}

TEST_F(Checkpoints, CountAppliedStepsAlone) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Saving run(comm, config_of("adam", DType::kFloat16), options(2));
    for (std::int64_t t = 1; t <= 7; ++t)  // applied: 1, 2, 5, 6
      run.step(t, t == 3 || t == 4 || t == 7);
    EXPECT_EQ(run.checkpointer.totals().saves, 2);
  });
  EXPECT_EQ(steps(), (std::set<std::int64_t>{2, 4}));
}

TEST_F(Checkpoints, AreNotDueAtOnceInAResumedRun) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    for (const std::int64_t first : {1, 6}) {
      Saving run(comm, config_of("onebit_adam"), options(4));
      int value = 0;
      if (first > 1) {
        const auto report = run.driven.engine.load(root.string());
        EXPECT_EQ(report.step, first - 1);
        value = static_cast<int>(report.extra.common.integer("value"));
        EXPECT_EQ(report.extra.own.integer("rank"), comm.rank());
      }
      const auto extra = [&] {
        checkpoint::Extra all;
        all.common.put_integer("value", ++value);
        all.own.put_integer("rank", comm.rank());
        return all;
      };
      for (std::int64_t t = first; t < first + 5; ++t)
        run.checkpointer.after_step(run.driven.step({.step = t}), extra);
      EXPECT_EQ(run.checkpointer.totals().saves, 1);
      run.checkpointer.finish(extra);
      EXPECT_EQ(value, first == 1 ? 2 : 4);
    }
  });
  EXPECT_EQ(steps(), (std::set<std::int64_t>{4, 5, 8, 10}));
}

TEST_F(Checkpoints, KeepWhatRetentionSays) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    CheckpointerOptions how = options(1);
    how.keep_last = 2;
    how.keep_every = 4;
    Saving(comm, config_of("adam"), how).steps(7);
  });
  EXPECT_EQ(steps(), (std::set<std::int64_t>{4, 6, 7}));
}

// Due at 5 and 10: local steps wait for their sync, and nothing is exchanged.
TEST_F(Checkpoints, OfLocalStepsWaitForTheNextSync) {
  std::set<std::int64_t> want;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Saving run(comm, config_of("zero_one_adam"), options(5));
    Sharded plain(comm, config_of("zero_one_adam"));
    bool is_due = false;
    bool waited = false;
    std::set<std::int64_t> expected;
    for (std::int64_t t = 1; t <= 24; ++t) {
      const EngineReport report = run.step(t);
      is_due = is_due || t % 5 == 0;
      waited = waited || (is_due && report.phase == optim::Phase::kLocal);
      if (is_due && report.phase != optim::Phase::kLocal) {
        expected.insert(t);
        is_due = false;
      }
      plain.step({.step = t});
    }
    EXPECT_TRUE(waited) << "the case has no local step where a save is due";
    EXPECT_EQ(floats(run.driven.engine.masters()),
              floats(plain.engine.masters()));
    if (comm.rank() == 0) want = expected;
  });
  EXPECT_EQ(steps(), want);
}

TEST_F(Checkpoints, AreSavedByRankZerosClock) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    CheckpointerOptions how = options();
    // Other ranks' clocks do not count.
    how.every = comm.rank() == 0 ? milliseconds(1) : std::chrono::hours(1);
    Saving run(comm, config_of("adam"), how);
    std::int64_t t = 0;
    while (run.checkpointer.totals().saves < 2) {
      ASSERT_LT(t, 1000);
      run.step(++t);
    }
  });
  EXPECT_EQ(steps().size(), 2u);
}

// ---- stopping

TEST_F(Checkpoints, OneRanksWishStopsAllAfterTheSameStep) {
  for (const int asking : {0, 2}) {
    fs::remove_all(root);
    std::vector<std::int64_t> stopped(3);
    comm::run_local_ranks(3, [&](comm::Communicator& comm) {
      Saving run(comm, config_of("zero_one_adam"), options());
      stopped[static_cast<std::size_t>(comm.rank())] =
          run.until_stopped(5, [&] {
            if (comm.rank() == asking) run.checkpointer.request_stop();
          });
      EXPECT_EQ(run.checkpointer.totals().saves, 1);
    });
    EXPECT_GE(stopped[0], 5);
    EXPECT_EQ(stopped[1], stopped[0]);
    EXPECT_EQ(stopped[2], stopped[0]);
    EXPECT_EQ(steps(), (std::set<std::int64_t>{stopped[0]}));
  }
}

TEST_F(Checkpoints, AWindowIsFinishedBeforeAStop) {
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    Saving run(comm, config_of("adam", DType::kFloat32, 2), options());
    run.checkpointer.request_stop();
    for (const std::int64_t micro : {0, 1}) {
      run.checkpointer.after_step(run.driven.step({1, micro}));
      EXPECT_EQ(run.checkpointer.stop_requested(), micro == 1);
    }
  });
  EXPECT_EQ(steps(), (std::set<std::int64_t>{1}));
}

TEST_F(Checkpoints, ASignalStopsRanks) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    CheckpointerOptions how = options();
    how.signals = {SIGUSR1, SIGUSR2};
    Saving run(comm, config_of("adam"), how);
    run.until_stopped(3, [&] {
      if (comm.rank() == 0) raise(SIGUSR2);
    });
  });
  EXPECT_EQ(steps().size(), 1u);
  struct sigaction now {};
  sigaction(SIGUSR2, nullptr, &now);
  EXPECT_EQ(now.sa_handler, SIG_DFL) << "handlers are put back";
}

std::atomic<int> seen{0};
extern "C" void count_signal(int) { ++seen; }

TEST_F(Checkpoints, ASecondSignalDoesWhatItDidBefore) {
  struct sigaction mine {};
  struct sigaction before {};
  mine.sa_handler = count_signal;
  sigaction(SIGUSR1, &mine, &before);
  seen = 0;
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    Sharded driven(comm, config_of("adam"));
    CheckpointerOptions how = options();
    how.signals = {SIGUSR1};
    const Checkpointer checkpointer(driven.engine, how);
    raise(SIGUSR1);
    EXPECT_EQ(seen, 0);
    raise(SIGUSR1);
    EXPECT_EQ(seen, 1);
    raise(SIGUSR1);
    EXPECT_EQ(seen, 2);
  });
  raise(SIGUSR1);
  EXPECT_EQ(seen, 3);
  sigaction(SIGUSR1, &before, nullptr);
}

// ---- failures

TEST_F(Checkpoints, APeriodicSaveThatFailsIsALineAndTheLastOneThrows) {
  std::ofstream(root) << "a file in the way\n";
  for (const bool asynchronous : {false, true}) {
    const KeptLog log;
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      CheckpointerOptions how = options(2);
      how.asynchronous = asynchronous;
      Saving run(comm, config_of("adam"), how);
      int told = 0;
      for (std::int64_t t = 1; t <= 5; ++t) {
        run.step(t);
        if (run.failure.empty()) continue;
        ++told;
        EXPECT_TRUE(asynchronous || t % 2 == 0);
        EXPECT_NE(run.failure.find(root.string() + ": "), std::string::npos);
      }
      // finish() may be what finds that the last asynchronous one has failed.
      EXPECT_GE(told, asynchronous ? 1 : 2);
      expect_error(ErrorCode::kUnavailable, {root.string()},
                   [&] { run.checkpointer.finish(); });
      EXPECT_EQ(run.checkpointer.totals().saves, 0);
      EXPECT_EQ(run.checkpointer.totals().failed, 2);
      run.checkpointer.request_stop();
      expect_error(ErrorCode::kUnavailable, {root.string()}, [&] {
        for (std::int64_t t = 6; t < 1000; ++t) run.step(t);
      });
      EXPECT_FALSE(run.checkpointer.stop_requested());
    });
    EXPECT_GE(
        log.count("a checkpoint could not be saved, training continues: "), 2u);
    EXPECT_EQ(log.count("saved"), log.count("could not be saved"));
  }
}

TEST_F(Checkpoints, GetTheirMemoryBackAfterAFailure) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Saving run(comm, config_of("adam"), options(1));
    if (comm.rank() == 0) std::ofstream(root) << "in the way\n";
    run.step(1);
    if (comm.rank() == 0) fs::remove(root);
    run.step(2);
    EXPECT_EQ(run.checkpointer.totals().failed, 1);
    EXPECT_EQ(run.checkpointer.totals().saves, 1);
  });
  EXPECT_EQ(steps(), (std::set<std::int64_t>{2}));
}

TEST_F(Checkpoints, OptionsAreCheckedBeforeAnythingChanges) {
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    Sharded driven(comm, config_of("adam"));
    const auto refused = [&](std::initializer_list<std::string_view> parts,
                             const auto& change) {
      CheckpointerOptions how = options();
      change(how);
      expect_invalid(parts, [&] { Checkpointer(driven.engine, how); });
    };
    refused({"root must be"}, [](auto& o) { o.root.clear(); });
    refused({"every_steps must be >= 0, got -1"},
            [](auto& o) { o.every_steps = -1; });
    refused({"every must be >= 0 ms, got -5"},
            [](auto& o) { o.every = milliseconds(-5); });
    refused({"keep_last", "-2"}, [](auto& o) { o.keep_last = -2; });
    refused({"keep_every", "-3"}, [](auto& o) { o.keep_every = -3; });
    for (const int signal : {0, -1, SIGKILL, SIGSTOP, 1000})
      refused({"signals must be", std::to_string(signal)}, [signal](auto& o) {
        o.signals = {SIGUSR1, signal};
      });
  });
  EXPECT_FALSE(fs::exists(root));
}

TEST(CheckpointerOptions, AreThoseOfAConfiguration) {
  const auto config = config::Config::from_json(
      R"({"thinwire": {"checkpoint": {"root": "Out/c", "every_steps": 500,
          "every": "10min", "keep_last": 3, "keep_every": 5000,
          "asynchronous": false}}})");
  const CheckpointerOptions options = checkpointer_options(config.checkpoint);
  EXPECT_EQ(options.root, "Out/c");
  EXPECT_EQ(options.every_steps, 500);
  EXPECT_EQ(options.every, std::chrono::minutes(10));
  EXPECT_EQ(options.keep_last, 3);
  EXPECT_EQ(options.keep_every, 5000);
  EXPECT_FALSE(options.asynchronous);
  expect_invalid({"root must be"},
                 [] { static_cast<void>(checkpointer_options({})); });
}

}  // namespace
}  // namespace thinwire::engine::test::checkpointer_test
