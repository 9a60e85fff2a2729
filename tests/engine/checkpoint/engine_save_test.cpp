// SPDX-License-Identifier: Apache-2.0
// SaveOptions can ask for averaged residuals, and for saves that are written
// while training goes on.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <thread>

#include "checkpoint/mean.h"
#include "checkpoint/rows.h"
#include "engine/by_hand.h"
#include "engine/checkpoint/saved.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/ranks.h"
#include "thinwire/checkpoint/inspect.h"

namespace thinwire::engine::test::engine_save_test {
namespace {

using checkpoint::Residuals;
using checkpoint::SaveOptions;

const SaveOptions kPerRank{.durable = false};
const SaveOptions kMean{.durable = false, .residuals = Residuals::kMean};

// The same run saved in both ways; 0/1 Adam's inside of local steps.
struct Both {
  std::string per_rank, mean;
  std::uint64_t per_rank_bytes = 0, mean_bytes = 0;
};

Both save_both(int world, const Config& config, const Folder& folder) {
  Both both;
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    Sharded run(comm, config);
    for (std::int64_t t = 1; t <= 8; ++t) run.step({t});
    const auto per_rank = run.engine.save(folder.in("own"), {}, kPerRank);
    const auto mean = run.engine.save(folder.in("mean"), {}, kMean);
    if (comm.rank() == 0)
      both = {per_rank.path, mean.path, per_rank.bytes, mean.bytes};
  });
  return both;
}

std::vector<std::string> arrays_with_means(const std::string& path) {
  std::vector<std::string> names;
  const Saved saved(path);
  for (const auto& array : saved.manifest().arrays)
    if (array.sharing == optim::Sharing::kMean) names.push_back(array.name);
  return names;
}

class MeanResiduals
    : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

INSTANTIATE_TEST_SUITE_P(All, MeanResiduals,
                         ::testing::Combine(::testing::Values("onebit_adam",
                                                              "onebit_lamb",
                                                              "zero_one_adam"),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& tested) {
                           return fmt::format("{}_w{}",
                                              std::get<0>(tested.param),
                                              std::get<1>(tested.param));
                         });

// In rank order, in double, rounded once; written once.
TEST_P(MeanResiduals, AreTheMeanOfTheRanks) {
  const auto& [optimizer, world] = GetParam();
  const Folder folder;
  const Both both = save_both(world, config_of(optimizer), folder);
  const auto names = arrays_with_means(both.per_rank);
  EXPECT_TRUE(world == 1 || !names.empty());
  EXPECT_TRUE(arrays_with_means(both.mean).empty());
  Saved own(both.per_rank);
  Saved mean(both.mean);
  std::uint64_t values = 0;
  for (const std::string& name : names) {
    const std::vector<float> got = mean.array(name);
    std::vector<double> sums(got.size());
    for (int r = 0; r < world; ++r) {
      const std::vector<float> of_rank = own.array(name, r);
      ASSERT_EQ(of_rank.size(), sums.size());
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += of_rank[i];
    }
    values += got.size();
    bool is_zero = true;
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], static_cast<float>(sums[i] / world)) << name << i;
      is_zero = is_zero && got[i] == 0;
    }
    EXPECT_FALSE(is_zero) << name;
  }
  const auto saved = static_cast<std::int64_t>(both.per_rank_bytes) -
                     static_cast<std::int64_t>(both.mean_bytes);
  // Headers and index tensors make the difference.
  EXPECT_NEAR(static_cast<double>(saved),
              4.0 * (world - 1) * static_cast<double>(values),
              4096.0 * (world + 1));
  EXPECT_TRUE(checkpoint::verify(both.mean).good());
}

// On the same number every rank gets the mean too, so that all of them together
// owe what they did, and go on.
TEST_P(MeanResiduals, AreKeptOnTheSameNumberOfRanks) {
  const auto& [optimizer, world] = GetParam();
  const Folder folder;
  const Config config = config_of(optimizer);
  const Both both = save_both(world, config, folder);
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    Sharded run(comm, config);
    run.engine.load(both.mean);
    Saved mean(both.mean);
    const StateDict state = run.engine.state_dict();
    for (const std::string& name : arrays_with_means(both.per_rank))
      EXPECT_EQ(floats(state.array(name)), mean.array(name)) << name;
    for (std::int64_t t = 9; t <= 14; ++t) EXPECT_TRUE(run.step({t}).applied);
  });
}

optim::State state_of(Buffer& values, std::vector<Range> ranges) {
  optim::State state;
  state.add_elements("e", optim::Sharing::kMean, std::move(ranges),
                     std::as_const(values).view());
  return state;
}

// Every rank has its share of the mean, whatever the size.
TEST(ReplaceByMeans, AwkwardSizes) {
  for (const std::size_t n : {0, 1, 2, 7, 31, 33, 1023, 1025, 4097})
    for (const int world : {1, 2, 3, 4})
      comm::run_local_ranks(world, [&](comm::Communicator& comm) {
        Buffer values = Buffer::of<float>(n);
        for (std::size_t i = 0; i < n; ++i)
          values.as<float>()[i] =
              static_cast<float>(i) + static_cast<float>(comm.rank());
        optim::State state = state_of(values, {{0, n}});
        checkpoint::replace_by_means(comm, state);
        EXPECT_EQ(state.arrays[0].sharing, optim::Sharing::kSame);
        const Range own = checkpoint::share_of(n, comm.rank(), world);
        std::vector<float> got(own.size);
        state.arrays[0].read(own, got);
        for (std::size_t i = 0; i < own.size; ++i)
          EXPECT_EQ(got[i], static_cast<float>(own.offset + i) +
                                static_cast<float>(world - 1) / 2);
      });
}

TEST(ReplaceByMeans, RanksMustSpeakOfTheSameElements) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Buffer values = Buffer::of<float>(4);
    optim::State state =
        state_of(values, {{comm.rank() == 0 ? std::size_t{0} : 4, 4}});
    expect_invalid({"ranks' mean", "4 from 4"},
                   [&] { checkpoint::replace_by_means(comm, state); });
  });
}

// 1 + 2^-8 lies halfway between two bf16; a bit beyond what fp32 holds decides.
TEST(MeanOfRanks, IsRoundedOnce) {
  for (const double sign : {1.0, -1.0}) {
    checkpoint::MeanOfRanks mean(1);
    for (const double value : {2 + 0x1p-7, 0x1p-40}) {
      const std::vector<float> one{static_cast<float>(sign * value)};
      mean.add(one);
    }
    std::vector<BFloat16> rounded(1);
    mean.write(rounded);
    EXPECT_EQ(to_float(rounded[0]), sign * (1 + 0x1p-7));
    std::vector<float> exact(1);
    mean.write(exact);
    EXPECT_EQ(exact[0], sign * (1 + 0x1p-8));
  }
}

// ---- saves that are written while training goes on

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
