// SPDX-License-Identifier: Apache-2.0
// A run that is saved after any step, and goes on in new objects as if nothing
// had happened.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/by_hand.h"
#include "optim/states.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/ranks.h"
#include "support/same_bits.h"

namespace thinwire::engine::test::engine_checkpoint_test {
namespace {

using checkpoint::SaveOptions;

// A run that goes through warm-up, freeze, syncs, skipped steps and changes of
// the loss scale.
struct Case {
  std::string name;
  int world = 1;
  Config config;
  Model model{};
  std::int64_t steps = 9;
  std::int64_t first_save = 1;  // before this step
  bool visits = true;           // what resumes has been elsewhere before
  bool compares_states = true;
  std::set<std::int64_t> overflows{2};
  std::int64_t overflow_of_rank_0 = 6;
  std::size_t phases = 0;  // that it goes through; 0: others know

  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << c.name << "_w" << c.world;
  }
};

// A run of each kind of state. Which steps and numbers of ranks change what an
// optimizer saves is tried in its own tests.
std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](std::string_view name, int world,
                       const Config& config) -> Case& {
    all.push_back(
        {fmt::format("{}_{}", name, to_string(config.precision.dtype)), world,
         config});
    return all.back();
  };
  for (const auto& [world, dtype] :
       {std::pair(3, DType::kFloat32), {2, DType::kFloat16}})
    for (const auto& [name, options] : optimizer_cases()) {
      Config config = config_of(name, dtype, 2);
      config.schedule.shape = config::WarmupAndDecay{
          .decay = config::Decay::kCosine, .warmup_steps = 3, .total_steps = 9};
      add(name, world, config);
    }
  add("zero_one_adam", 1, config_of("zero_one_adam", DType::kBFloat16));
  add("zero1", 2, test::zero_config(1, DType::kFloat32));
  add("zero2", 3, test::zero_config(2, DType::kFloat16));

  for (const std::string name :
       {"onebit_adam", "onebit_lamb", "zero_one_adam"}) {
    Config config = config_of(name, DType::kFloat16);
    config.semantics = config::Semantics::kDeepSpeed;
    config.comm.bucket_elements = 700;
    Case& c = add("deepspeed_" + name, 3, config);
    c.model = {.layout = ParameterLayout::of(ordered_specs()),
               .from_floats = false};
    c.steps = 12;
    c.compares_states = false;
    c.overflows = {5};
    c.overflow_of_rank_0 = 0;
    c.phases = name == "zero_one_adam" ? 3 : 2;
  }

  const auto add_other = [&](const std::string& name, int world,
                             const Config& config) -> Case& {
    Case& c = add(name, world, config);
    c.first_save = 2;
    c.visits = c.compares_states = false;
    c.overflow_of_rank_0 = 0;
    return c;
  };
  for (const auto& [name, config] : few_bits_cases())
    add_other("few_bits_" + name, 2, config);
  // Hosts of three, too, whose mean of equal values rounds.
  struct Outer {
    const char* inner;
    DType dtype;
    int world, each = 1;
  };
  for (const Outer& outer :
       {Outer{"adam", DType::kFloat32, 3}, Outer{"lamb", DType::kBFloat16, 1},
        Outer{"onebit_adam", DType::kFloat16, 3},
        Outer{"onebit_adam", DType::kFloat32, 4, 2},
        Outer{"adam", DType::kFloat32, 6, 3}}) {
    Config config = outer_config(outer.inner, outer.dtype);
    if (outer.each > 1) {
      config.comm.hierarchy = config::Hierarchy::kByHost;
      config.comm.ranks_per_host = outer.each;
    }
    add_other(fmt::format("outer_{}_of_{}", outer.inner, outer.each),
              outer.world, config)
        .overflows.clear();
  }
  return all;
}

EngineReport step(Sharded& run, std::int64_t t, bool overflows) {
  const std::int64_t backwards =
      run.engine.config().gradient_accumulation_steps.value_or(1);
  EngineReport report;
  for (std::int64_t micro = 0; micro < backwards; ++micro)
    report = run.step({t, micro, overflows && micro == 0});
  return report;
}

// One of expect_continues()'s runs that has been resumed, and where.
struct Resumed {
  std::int64_t since;
  std::unique_ptr<Sharded> run;
};

// Every resumed run goes on beside the undisturbed one for six steps.
void expect_continues(comm::Communicator& comm, const std::string& root,
                      const Case& c) {
  const auto train = [&](Sharded& run, std::int64_t t) {
    return step(run, t,
                c.overflows.contains(t) ||
                    (t == c.overflow_of_rank_0 && comm.rank() == 0));
  };
  Sharded main(comm, c.config, c.model);
  std::vector<Resumed> resumed;
  std::set<optim::Phase> phases;
  for (std::int64_t t = 1; t <= c.steps; ++t) {
    if (t >= c.first_save) {
      const checkpoint::SaveReport saved = main.engine.save(root, {}, kQuick);
      auto run = std::make_unique<Sharded>(comm, c.config, c.model);
      if (c.visits) train(*run, 70);  // leaves no trace
      EXPECT_EQ(run->engine.load(root).path, saved.path);
      EXPECT_TRUE(same_bytes(run->params.view(), main.params.view())) << t;
      EXPECT_EQ(run->engine.loss_scale(), main.engine.loss_scale());
      resumed.push_back({t, std::move(run)});
    }
    const EngineReport want = train(main, t);
    phases.insert(want.phase);
    for (const auto& [since, other] : resumed) {
      if (t >= since + 6) continue;
      const EngineReport report = train(*other, t);
      EXPECT_EQ(report.steps, want.steps);
      EXPECT_EQ(report.learning_rate, want.learning_rate);
      EXPECT_EQ(report.applied, want.applied);
      EXPECT_EQ(report.phase, want.phase);
      EXPECT_TRUE(same_bits(report.grad_norm, want.grad_norm));
      ASSERT_TRUE(same_bytes(other->params.view(), main.params.view()))
          << "saved before step " << since << ", after step " << t;
      if (c.compares_states && (t == since + 5 || t == c.steps)) {
        EXPECT_TRUE(
            same_state(other->engine.state_dict(), main.engine.state_dict()));
      }
    }
  }
  if (c.phases > 0) {
    EXPECT_EQ(phases.size(), c.phases);
  }
}

class SameRanks : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(All, SameRanks, ::testing::ValuesIn(cases()),
                         ::testing::PrintToStringParamName());

TEST_P(SameRanks, ContinueWithTheSameBits) {
  const Folder folder;
  comm::run_local_ranks(GetParam().world, [&](comm::Communicator& comm) {
    expect_continues(comm, folder.in("run"), GetParam());
  });
}

// ---- other numbers of ranks

// Exact states have the same bits, whoever has them: they pass through any
// number of ranks at any stage.
TEST(OtherRanks, HaveTheSameStatesOfAnyStage) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Folder folder;
    const auto config = [&](int stage) {
      return stage == 0 ? config_of("adam", dtype)
                        : test::zero_config(stage, dtype);
    };
    std::vector<std::string> paths;
    const auto save = [&](int world, int stage) {
      const std::string from = paths.empty() ? "" : paths.back();
      paths.push_back(folder.in(fmt::format("run{}", paths.size())));
      comm::run_local_ranks(world, [&](comm::Communicator& comm) {
        Sharded run(comm, config(stage));
        if (!from.empty()) static_cast<void>(run.engine.load(from));
        for (std::int64_t t = 1; from.empty() && t <= 3; ++t) run.step({t});
        static_cast<void>(run.engine.save(paths.back(), {}, kQuick));
      });
    };
    save(3, 0);
    for (const int world : {1, 3, 2, 4})
      for (const int stage : {1, 2, 0}) save(world, stage);
    comm::run_local_ranks(1, [&](comm::Communicator& comm) {
      Sharded first(comm, config(0));
      Sharded last(comm, config(0));
      static_cast<void>(first.engine.load(paths.front()));
      static_cast<void>(last.engine.load(paths.back()));
      EXPECT_EQ(first.engine.optimizer().progress().steps, 3);
      EXPECT_TRUE(same_bytes(first.params.view(), last.params.view()));
      EXPECT_TRUE(
          same_state(first.engine.state_dict(), last.engine.state_dict()));
    });
  }
}

// ---- other settings

TEST(OtherSettings, OfThePresentRunHold) {
  const Folder folder;
  Config config = config_of("adam", DType::kFloat32);
  save_run(2, config, folder.in("run"), 2);
  config.gradient_clipping = 0.5;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Sharded run(comm, config);
    run.engine.learning_rates().set(1, 0.25);
    const auto report = run.engine.load(folder.in("run"));
    EXPECT_EQ(run.engine.optimizer().groups().learning_rate(0), 0.01);
    EXPECT_EQ(run.engine.optimizer().groups().learning_rate(1), 0.03);
    EXPECT_GT(count_notes(report, "gradient_clipping"), 0);
  });
}

// Neither what only says what is reported and saved, nor a freeze that the
// checkpoint restores.
TEST(OtherSettings, AreNotedIfTheyMatter) {
  const Folder folder;
  Config config = config_of("onebit_adam", DType::kFloat32);
  std::get<optim::OnebitAdamOptions>(config.optimizer).freeze.step = 2;
  config.checkpoint.every_steps = 10;
  config.steps_per_print = 7;
  save_run(2, config, folder.in("run"), 2);
  std::get<optim::OnebitAdamOptions>(config.optimizer).freeze.step.reset();
  config.checkpoint = {};
  config.steps_per_print = 100;
  config.telemetry.path = folder.in("telemetry.jsonl");
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Sharded run(comm, config);
    const auto report = run.engine.load(folder.in("run"));
    EXPECT_EQ(run.engine.optimizer().progress().freeze_step, 2);
    for (const std::string& note : report.notes)
      EXPECT_EQ(note.find("now, and was"), std::string::npos) << note;
  });
}

// ---- refused

TEST(EngineCheckpoint, IsBetweenWindows) {
  const Folder folder;
  Config config = config_of("adam", DType::kFloat32);
  config.gradient_accumulation_steps = 2;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Sharded run(comm, config);
    run.backward({1, 0});
    expect_error(ErrorCode::kFailedPrecondition, {"save", "step()"},
                 [&] { run.engine.save(folder.in("run"), {}, kQuick); });
    expect_error(ErrorCode::kFailedPrecondition, {"load", "step()"},
                 [&] { run.engine.load(folder.in("run")); });
    run.engine.step();
    run.step({1, 1});
    run.engine.begin_evaluation();
    expect_error(ErrorCode::kFailedPrecondition, {"evaluation"},
                 [&] { run.engine.save(folder.in("run"), {}, kQuick); });
    run.engine.end_evaluation();
    expect_error(ErrorCode::kUnavailable, {folder.in("run")},
                 [&] { run.engine.load(folder.in("run")); });
  });
}

TEST(EngineCheckpoint, RanksThatHaveDriftedApartAreNotMixed) {
  const Folder folder;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Sharded run(comm, config_of("adam", DType::kFloat32));
    run.step({1});
    if (comm.rank() == 1)
      run.params.as<float>()[run.layout.parameter("long").offset + 7] += 1;
    expect_invalid({"parameter long"},
                   [&] { run.engine.save(folder.in("run"), {}, kQuick); });
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
    Sharded run(comm, config);
    run.engine.save(folder.in("run"), extra_of(comm.rank()), kQuick);
  });
  const auto load = [&](comm::Communicator& comm, checkpoint::What what) {
    Sharded run(comm, config);
    const auto report = run.engine.load(folder.in("run"), {.what = what});
    const checkpoint::Extra want = extra_of(comm.rank());
    EXPECT_EQ(report.extra.common.integer("next_sequence"), 1234567890123);
    EXPECT_TRUE(std::isnan(report.extra.common.real("nothing")));
    EXPECT_EQ(report.extra.common.text("word"), want.common.text("word"));
    EXPECT_TRUE(same_bytes(report.extra.common.array("seen"),
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
}  // namespace thinwire::engine::test::engine_checkpoint_test
