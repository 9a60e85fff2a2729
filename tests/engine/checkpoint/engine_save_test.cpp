// SPDX-License-Identifier: Apache-2.0
// Saves that are written while training goes on.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <thread>

#include "engine/by_hand.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/ranks.h"

namespace thinwire::engine::test::engine_save_test {
namespace {

// A load gets the values of the moment of save(), even if parameters and states
// change before they are written.
TEST(AsynchronousSave, HasNothingThatCameLater) {
  for (const char* optimizer : {"adam", "onebit_adam", "zero_one_adam"}) {
    const Folder folder;
    const std::string root = folder.in(optimizer);
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Sharded driven(comm, config_of(optimizer));
      Sharded plain(comm, config_of(optimizer));
      Sharded loaded(comm, config_of(optimizer));
      for (std::int64_t t = 1; t <= 6; ++t) {
        driven.step({.step = t});
        plain.step({.step = t});
        const checkpoint::SaveReport report = driven.engine.save(
            root, {}, {.asynchronous = true, .durable = false});
        EXPECT_EQ(report.step, t);
        // Steps that never were, and parameters that are no numbers.
        driven.step({.step = 100 + t});
        const auto params = driven.params.as<float>();
        std::fill(params.begin(), params.end(),
                  std::numeric_limits<float>::quiet_NaN());
        driven.engine.saver().wait();
        EXPECT_FALSE(driven.engine.saver().is_saving());
        loaded.engine.load(report.path);
        ASSERT_EQ(floats(loaded.params.view()), floats(plain.params.view()));
        driven.engine.load(report.path);
        ASSERT_EQ(floats(driven.params.view()), floats(plain.params.view()));
      }
    });
  }
}

// Files of this process may not grow beyond so many bytes, as if a disk were
// full.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) : signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~SmallFiles() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, signal_);
  }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;

 private:
  void (*signal_)(int);
  rlimit before_{};
};

TEST(AsynchronousSave, FailsOnceOnAllRanksAndTheNextOneWorks) {
  for (const bool by_save : {false, true}) {
    const Folder folder;
    const std::string root = folder.path();
    comm::run_local_ranks(3, [&](comm::Communicator& comm) {
      Sharded driven(comm, config_of("adam"));
      const checkpoint::SaveOptions how{.asynchronous = true, .durable = false};
      const auto save = [&] { driven.engine.save(root, {}, how); };
      driven.step({.step = 1});
      save();
      driven.engine.saver().wait();
      driven.step({.step = 2});
      comm.barrier();
      std::optional<SmallFiles> full;
      if (comm.rank() == 0) full.emplace(50'000);
      comm.barrier();
      save();
      while (driven.engine.saver().is_saving()) std::this_thread::yield();
      comm.barrier();
      full.reset();
      comm.barrier();
      driven.step({.step = 3});
      expect_error(ErrorCode::kUnavailable, {"rank ", root, "File too large"},
                   [&] {
                     if (by_save)
                       save();
                     else
                       driven.engine.saver().wait();
                   });
      driven.engine.saver().wait();  // once
      EXPECT_EQ(driven.engine.load(root).step, 1);
      driven.step({.step = 2});
      save();
      driven.engine.saver().wait();
      EXPECT_EQ(driven.engine.load(root).step, 2);
    });
  }
}

}  // namespace
}  // namespace thinwire::engine::test::engine_save_test
