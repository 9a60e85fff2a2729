// SPDX-License-Identifier: Apache-2.0
// A run that is saved after any step, and goes on in new objects as if nothing
// had happened.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>

#include "engine/by_hand.h"
#include "engine/sharded.h"
#include "optim/states.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/long.h"
#include "support/ranks.h"
#include "support/same_bits.h"
#include "support/sanitizers.h"

namespace thinwire::engine::engine_checkpoint_test {

namespace {

using checkpoint::SaveOptions;
using config::Config;
using test::config_of;
using test::Driven;
using test::Sharded;
using thinwire::test::expect_error;
using thinwire::test::Folder;
using thinwire::test::same_state;

const SaveOptions kQuick{.durable = false};

// Eight steps: through warm-up, freeze, syncs, a skipped step and a change of
// the loss scale.
constexpr std::int64_t kSteps = 8;

template <class Run>
EngineReport step(Run& run, std::int64_t t, int rank) {
  const bool overflows = t == 2 || (t == 6 && rank == 0);
  const std::int64_t backwards =
      run.engine.config().gradient_accumulation_steps.value_or(1);
  EngineReport report;
  for (std::int64_t micro = 0; micro < backwards; ++micro) {
    run.backward({t, micro, overflows && micro == 0});
    report = run.engine.step();
  }
  return report;
}

std::vector<int> worlds() {
  if (thinwire::test::is_long())
    return thinwire::test::fewer_if_sanitized<int>({4, 8, 3, 2, 1}, 2);
  return thinwire::test::fewer_if_sanitized<int>({3, 2, 1}, 1);
}

class SameRanks
    : public ::testing::TestWithParam<std::tuple<int, DType, std::string>> {};

INSTANTIATE_TEST_SUITE_P(
    All, SameRanks,
    ::testing::Combine(::testing::ValuesIn(worlds()),
                       ::testing::Values(DType::kFloat32, DType::kBFloat16,
                                         DType::kFloat16),
                       ::testing::Values("adam", "lamb", "onebit_adam",
                                         "onebit_lamb", "zero_one_adam")),
    [](const auto& tested) {
      return fmt::format("{}_{}_w{}", std::get<2>(tested.param),
                         to_string(std::get<1>(tested.param)),
                         std::get<0>(tested.param));
    });

// Every resumed run goes on beside the undisturbed one for five steps.
template <class Run>
void expect_continues(comm::Communicator& comm, const std::string& root,
                      const Config& config) {
  Run main(comm, config);
  std::vector<std::pair<std::int64_t, std::unique_ptr<Run>>> resumed;
  for (std::int64_t t = 1; t <= kSteps; ++t) {
    const checkpoint::SaveReport saved = main.engine.save(root, {}, kQuick);
    auto run = std::make_unique<Run>(comm, config);
    step(*run, 70, comm.rank());  // has been elsewhere: that leaves no trace
    const checkpoint::LoadReport loaded = run->engine.load(root);
    EXPECT_EQ(loaded.path, saved.path);
    EXPECT_TRUE(
        thinwire::test::same_bytes(run->params.view(), main.params.view()))
        << t;
    EXPECT_EQ(run->engine.loss_scale(), main.engine.loss_scale());
    resumed.emplace_back(t, std::move(run));

    const EngineReport want = step(main, t, comm.rank());
    for (const auto& [since, other] : resumed) {
      if (t >= since + 5) continue;
      const EngineReport report = step(*other, t, comm.rank());
      EXPECT_EQ(report.steps, want.steps);
      EXPECT_EQ(report.learning_rate, want.learning_rate);
      EXPECT_EQ(report.applied, want.applied);
      EXPECT_EQ(report.phase, want.phase);
      EXPECT_EQ(report.grad_norm, want.grad_norm);
      ASSERT_TRUE(
          thinwire::test::same_bytes(other->params.view(), main.params.view()))
          << "saved before step " << since << ", after step " << t;
      if (t == since + 4 || t == kSteps) {
        EXPECT_TRUE(
            same_state(other->engine.state_dict(), main.engine.state_dict()));
      }
    }
  }
}

TEST_P(SameRanks, GoOnWithTheSameBits) {
  const auto& [world, dtype, optimizer] = GetParam();
  const Folder folder;
  Config config = config_of(optimizer, dtype);
  config.gradient_accumulation_steps = 2;
  config.schedule.shape = config::WarmupAndDecay{
      .decay = config::Decay::kCosine, .warmup_steps = 3, .total_steps = 9};
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    expect_continues<Driven>(comm, folder.in("run"), config);
  });
}

class SameShards : public ::testing::TestWithParam<std::tuple<int, DType>> {};

INSTANTIATE_TEST_SUITE_P(
    All, SameShards,
    ::testing::Combine(::testing::ValuesIn(worlds()),
                       ::testing::Values(DType::kFloat32, DType::kBFloat16,
                                         DType::kFloat16)));

TEST_P(SameShards, GoOnWithTheSameBits) {
  const auto& [world, dtype] = GetParam();
  for (const int stage : {1, 2}) {
    const Folder folder;
    comm::run_local_ranks(world, [&, d = dtype](comm::Communicator& comm) {
      expect_continues<Sharded>(comm, folder.in("run"),
                                test::zero_config(stage, d));
    });
  }
}

// ---- other numbers of ranks

// One checkpoint of `world` ranks after `steps` steps.
template <class Run>
void save_run(int world, const Config& config, const std::string& root,
              std::int64_t steps, const std::string& from = {}) {
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    Run run(comm, config);
    if (!from.empty()) static_cast<void>(run.engine.load(from));
    for (std::int64_t t = 1; t <= steps; ++t) step(run, t, comm.rank());
    static_cast<void>(run.engine.save(root, {}, kQuick));
  });
}

// Exact states have the same bits, whoever has them.
TEST(OtherRanks, HaveTheSameStatesOfAnyStage) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Folder folder;
    Config config = config_of("adam", dtype);
    save_run<Driven>(3, config, folder.in("a"), 3);
    std::string from = folder.in("a");
    int number = 0;
    for (const int world : {1, 3, 2, 4}) {
      for (const int stage : {1, 2}) {
        const std::string to = folder.in(fmt::format("run{}", number++));
        save_run<Sharded>(world, test::zero_config(stage, dtype), to, 0, from);
        from = to;
      }
      const std::string to = folder.in(fmt::format("run{}", number++));
      save_run<Driven>(world, config, to, 0, from);
      from = to;
    }
    comm::run_local_ranks(1, [&](comm::Communicator& comm) {
      Driven first(comm, config);
      Driven last(comm, config);
      static_cast<void>(first.engine.load(folder.in("a")));
      static_cast<void>(last.engine.load(from));
      EXPECT_GT(first.engine.optimizer().progress().steps, 0);
      EXPECT_TRUE(
          thinwire::test::same_bytes(first.params.view(), last.params.view()));
      EXPECT_TRUE(
          same_state(first.engine.state_dict(), last.engine.state_dict()));
    });
  }
}

// ---- other settings

TEST(OtherSettings, OfThePresentRunHold) {
  const Folder folder;
  Config config = config_of("adam", DType::kFloat32);
  save_run<Driven>(2, config, folder.in("run"), 2);
  config.gradient_clipping = 0.5;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Driven run(comm, config);
    run.engine.learning_rates().set(1, 0.25);
    const auto report = run.engine.load(folder.in("run"));
    EXPECT_EQ(run.engine.optimizer().groups().learning_rate(0), 0.01);
    EXPECT_EQ(run.engine.optimizer().groups().learning_rate(1), 0.03);
    bool noted = false;
    for (const std::string& note : report.notes)
      noted = noted || note.find("gradient_clipping") != std::string::npos;
    EXPECT_TRUE(noted);
  });
}

TEST(OtherSettings, PrecisionMayChange) {
  const DType dtypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  for (const DType before : dtypes)
    for (const DType after : dtypes) {
      const Folder folder;
      save_run<Driven>(2, config_of("adam", before), folder.in("run"), 3);
      comm::run_local_ranks(2, [&](comm::Communicator& comm) {
        Driven old(comm, config_of("adam", before));
        static_cast<void>(old.engine.load(folder.in("run")));
        Driven run(comm, config_of("adam", after));
        static_cast<void>(run.engine.load(folder.in("run")));
        EXPECT_GT(run.engine.optimizer().progress().steps, 0);
        EXPECT_EQ(test::floats(run.engine.masters()),
                  test::floats(old.engine.masters()));
        EXPECT_TRUE(step(run, 4, 0).applied);
      });
    }
}

TEST(OtherSettings, OptimizersThatFollowEachOther) {
  const Folder folder;
  const auto config = [](const char* name) {
    return config_of(name, DType::kFloat32);
  };
  save_run<Driven>(2, config("adam"), folder.in("adam"), 2);
  save_run<Driven>(2, config("lamb"), folder.in("lamb"), 2);
  save_run<Driven>(2, config("onebit_adam"), folder.in("early"), 2);
  save_run<Driven>(2, config("onebit_adam"), folder.in("late"), 5);
  save_run<Driven>(2, config("onebit_adam"), folder.in("a"), 3,
                   folder.in("adam"));
  save_run<Driven>(2, config("onebit_lamb"), folder.in("b"), 3,
                   folder.in("lamb"));
  save_run<Driven>(2, config("adam"), folder.in("c"), 3, folder.in("early"));
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Driven run(comm, config("adam"));
    const Buffer before = Buffer(run.params.size(), DType::kFloat32);
    expect_error(ErrorCode::kCorruptCheckpoint, {"variance", "kWeights"}, [&] {
      static_cast<void>(run.engine.load(folder.in("late")));
    });
    expect_error(ErrorCode::kCorruptCheckpoint, {"lamb"}, [&] {
      static_cast<void>(run.engine.load(folder.in("lamb")));
    });
    // Its weights will do.
    const auto report = run.engine.load(folder.in("late"),
                                        {.what = checkpoint::What::kWeights});
    EXPECT_EQ(report.step, 5 - 1);  // one was skipped
    EXPECT_EQ(run.engine.optimizer().progress().steps, 0);
  });
}

// ---- refused

TEST(EngineCheckpoint, IsBetweenWindows) {
  const Folder folder;
  Config config = config_of("adam", DType::kFloat32);
  config.gradient_accumulation_steps = 2;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Driven run(comm, config);
    run.backward({1, 0});
    expect_error(ErrorCode::kFailedPrecondition, {"save", "step()"}, [&] {
      static_cast<void>(run.engine.save(folder.in("run"), {}, kQuick));
    });
    expect_error(ErrorCode::kFailedPrecondition, {"load", "step()"},
                 [&] { static_cast<void>(run.engine.load(folder.in("run"))); });
    run.engine.step();
    run.backward({1, 1});
    run.engine.step();
    run.engine.begin_evaluation();
    expect_error(ErrorCode::kFailedPrecondition, {"evaluation"}, [&] {
      static_cast<void>(run.engine.save(folder.in("run"), {}, kQuick));
    });
    run.engine.end_evaluation();
    expect_error(ErrorCode::kUnavailable, {folder.in("run")},
                 [&] { static_cast<void>(run.engine.load(folder.in("run"))); });
  });
}

TEST(EngineCheckpoint, RanksThatHaveDriftedApartAreNotMixed) {
  const Folder folder;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Driven run(comm, config_of("adam", DType::kFloat32));
    step(run, 1, comm.rank());
    if (comm.rank() == 1)
      run.params.as<float>()[run.layout.parameter("long").offset + 7] += 1;
    expect_error(ErrorCode::kInvalidArgument, {"parameter long"}, [&] {
      static_cast<void>(run.engine.save(folder.in("run"), {}, kQuick));
    });
    EXPECT_FALSE(std::filesystem::exists(folder.in("run/latest")));
  });
}

TEST(EngineCheckpoint, HandsBackWhatTheApplicationAdded) {
  const Folder folder;
  const auto extra_of = [](int rank) {
    checkpoint::Extra extra;
    extra.common.put_integer("next_sequence", 1234567890123);
    extra.common.put_real("nothing", std::nan(""));
    extra.common.put_text("word", "a \"b\"\n\xc3\xa9");
    extra.common.put("seen", std::vector<std::int64_t>{1, 2, 3});
    extra.own.put_integer("rank", rank);
    extra.own.put("random", std::vector<std::uint8_t>(
                                static_cast<std::size_t>(rank) + 1, 7));
    return extra;
  };
  const Config config = config_of("adam", DType::kFloat32);
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Driven run(comm, config);
    static_cast<void>(
        run.engine.save(folder.in("run"), extra_of(comm.rank()), kQuick));
  });
  const auto load = [&](comm::Communicator& comm, checkpoint::What what) {
    Driven run(comm, config);
    const auto report = run.engine.load(folder.in("run"), {.what = what});
    const checkpoint::Extra want = extra_of(comm.rank());
    EXPECT_EQ(report.extra.common.integer("next_sequence"), 1234567890123);
    EXPECT_TRUE(std::isnan(report.extra.common.real("nothing")));
    EXPECT_EQ(report.extra.common.text("word"), want.common.text("word"));
    EXPECT_TRUE(thinwire::test::same_bytes(report.extra.common.array("seen"),
                                           want.common.array("seen")));
    EXPECT_EQ(report.world, 2);
    ASSERT_EQ(report.own_of_ranks.size(), 2u);
    EXPECT_EQ(report.own_of_ranks[1].integer("rank"), 1);
    if (comm.rank() < 2) {
      EXPECT_TRUE(same_state(report.extra.own, want.own));
    } else {
      EXPECT_TRUE(report.extra.own.scalars().empty());
    }
  };
  for (const auto what : {checkpoint::What::kAll, checkpoint::What::kWeights})
    comm::run_local_ranks(3,
                          [&](comm::Communicator& comm) { load(comm, what); });
}

}  // namespace

}  // namespace thinwire::engine::engine_checkpoint_test
