// SPDX-License-Identifier: Apache-2.0
// An Engine with an outer loop: its checkpoints, precisions and refusals.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "engine/by_hand.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/kept_log.h"
#include "support/same_bits.h"
#include "thinwire/comm/local.h"
#include "thinwire/engine/telemetry.h"

namespace thinwire::engine::test::engine_outer_test {
namespace {

using optim::Phase;

Buffer params_of(const Sharded& training) {
  Buffer copy(training.params.size(), training.params.dtype());
  kernels::convert(training.params.view(), copy.view());
  return copy;
}

// Takes four steps after `steps`, and a sync.
Buffer trained_on(Sharded& training, std::int64_t steps) {
  for (std::int64_t t = steps + 1; t <= steps + 4; ++t)
    EXPECT_TRUE(training.step({t}).applied);
  training.engine.begin_evaluation();
  training.engine.end_evaluation();
  return params_of(training);
}

Config without_outer(Config config) {
  config.outer = {};
  return config;
}

Config by_host(Config config, int ranks_per_host) {
  config.comm.hierarchy = config::Hierarchy::kByHost;
  config.comm.ranks_per_host = ranks_per_host;
  return config;
}

TEST(OuterEngineByHost, ContinuesOnOtherHosts) {
  struct Ranks {
    int world, each;
  };
  const auto config_of = [](const Ranks& ranks) {
    const Config config = outer_config("onebit_adam");
    return ranks.each == 1 ? config : by_host(config, ranks.each);
  };
  for (const Ranks before : {Ranks{4, 2}, Ranks{4, 1}, Ranks{6, 3}})
    for (const std::int64_t steps : {2, 5, 6}) {
      const Folder folder;
      const std::string saved =
          save_run(before.world, config_of(before), folder.in("run"), steps);
      for (const Ranks after :
           {Ranks{4, 2}, Ranks{4, 1}, Ranks{6, 2}, Ranks{1, 1}}) {
        const auto size = static_cast<std::size_t>(after.world);
        std::vector<Buffer> params(size);
        comm::run_local_ranks(after.world, [&](comm::Communicator& comm) {
          Sharded training(comm, config_of(after));
          const auto report = training.engine.load(saved);
          EXPECT_EQ(report.step, steps);
          EXPECT_EQ(count_notes(report, "grouped into other hosts") > 0,
                    before.world == after.world && before.each != after.each);
          if (before.each == 1 && after.each == 1) {
            EXPECT_EQ(optim::steps_behind(training.engine.optimizer()),
                      steps == 5 ? 2 : 0);
          }
          params[static_cast<std::size_t>(comm.rank())] =
              trained_on(training, steps);
        });
        for (const Buffer& own : params)
          EXPECT_TRUE(same_bytes(own.view(), params[0].view()))
              << before.world << "/" << before.each << " to " << after.world
              << "/" << after.each << " after " << steps;
      }
    }
}

// Adam and 1-bit Adam have no local steps, so their ranks are equal again.
TEST(OuterEngineByHost, WithoutItAllRanksTakeTheMeanOfHosts) {
  for (const std::string optimizer : {"adam", "onebit_adam"})
    for (const int each : {1, 2}) {
      const Folder folder;
      const Config with = outer_config(optimizer);
      const Config without = without_outer(with);
      const std::string saved = save_run(
          4, each == 1 ? with : by_host(with, each), folder.in("run"), 6);
      const auto load = [&](comm::Communicator& comm, const Config& config) {
        Sharded training(comm, config);
        training.engine.load(saved);
        return optim::copy_of(training.engine.optimizer().state());
      };
      StateDict mean;
      comm::run_local_ranks(
          1, [&](comm::Communicator& comm) { mean = load(comm, without); });
      comm::run_local_ranks(4, [&](comm::Communicator& comm) {
        const StateDict state =
            load(comm, each == 1 ? without : by_host(without, each));
        EXPECT_TRUE(same_bytes(state.array("exp_avg"),
                               std::as_const(mean).array("exp_avg")))
            << optimizer << ", hosts of " << each;
      });
    }
}

// The weights are the anchor, and moments are the ranks' mean.
TEST(OuterEngine, AdamContinuesAnOuterLoopAndViceVersa) {
  const Folder folder;
  const Config with = outer_config("adam");
  const Config without = without_outer(with);
  const std::string saved = save_run(2, with, folder.in("run"), 5);
  for (const int world : {1, 2, 3}) {
    std::string back;
    comm::run_local_ranks(world, [&](comm::Communicator& comm) {
      Sharded training(comm, without);
      training.engine.load(saved);
      for (std::int64_t t = 6; t <= 7; ++t)
        EXPECT_EQ(training.step({t}).phase, Phase::kExact);
      const auto report = training.engine.save(
          folder.in(fmt::format("adam{}", world)), {}, kQuick);
      if (comm.rank() == 0) back = report.path;
    });
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Sharded training(comm, with);
      training.engine.load(back);
      const EngineReport first = training.step({8});
      EXPECT_EQ(first.phase, Phase::kLocal);
      EXPECT_EQ(first.steps, 8);
      training.step({9});
      EXPECT_EQ(training.step({10}).phase, Phase::kCompressed);
    });
  }
}

TEST(OuterEngine, LoadingSaysWhichLocalStepsAreLeftOut) {
  const Folder folder;
  const Config with = outer_config("adam");
  const Config without = without_outer(with);
  const std::string saved = save_run(2, with, folder.in("run"), 4);
  const auto says = [&](const Config& config, checkpoint::What what) {
    bool found = false;
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Sharded training(comm, config);
      const auto report = training.engine.load(saved, {.what = what});
      if (comm.rank() == 0)
        found = count_notes(report,
                            "2 local steps after the last exchange are left "
                            "out") > 0;
    });
    return found;
  };
  EXPECT_FALSE(says(with, checkpoint::What::kAll));
  EXPECT_TRUE(says(with, checkpoint::What::kWeights));
  EXPECT_TRUE(says(without, checkpoint::What::kAll));
}

// What 1-bit Adam has frozen stays, and its residuals go.
TEST(OuterEngine, ContinuesOnebitAdam) {
  const Folder folder;
  const Config with = outer_config("onebit_adam");
  const Config without = without_outer(with);
  const std::string saved = save_run(2, without, folder.in("run"), 5);
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Sharded training(comm, with);
    const auto report = training.engine.load(saved);
    EXPECT_GT(
        count_notes(report, "the residuals of compressed momenta are dropped"),
        0);
    EXPECT_EQ(training.step({6}).phase, Phase::kLocal);
  });
}

// Local steps since the last sync are discarded, with 0/1 Adam, too.
TEST(LocalStepsOfAnEngine, EndIfAParameterIsSet) {
  for (const char* name : {"onebit_adam", "adam", "zero_one_adam"})
    for (const DType dtype : kDTypes)
      comm::run_local_ranks(3, [&](comm::Communicator& comm) {
        Config config = outer_config(name, dtype);
        if (name == std::string("zero_one_adam")) config.outer = {};
        Sharded training(comm, config);
        std::int64_t t = 0;
        do {
          training.step({++t});
          ASSERT_LT(t, 40);
        } while (optim::steps_behind(training.engine.optimizer()) != 1);
        Buffer common(training.params.size(), DType::kFloat32);
        kernels::convert(optim::exchanged_params(training.engine.optimizer(),
                                                 training.params.view()),
                         common.view());
        training.engine.whole_values().set_parameter(
            "last", std::vector{1.F, 2.F, 3.F});
        EXPECT_EQ(optim::steps_behind(training.engine.optimizer()), 0);
        const auto at = training.layout.parameter("last").offset;
        for (std::size_t i = 0; i < 3; ++i)
          common.as<float>()[at + i] = static_cast<float>(i + 1);
        Buffer rounded(common.size(), training.params.dtype());
        kernels::convert(common.view(), rounded.view());
        EXPECT_TRUE(same_bytes(training.params.view(), rounded.view()))
            << name << to_string(dtype);
        for (int more = 0; more < 12; ++more) training.step({++t});
        training.engine.begin_evaluation();
        const Buffer own = params_of(training);
        Buffer first = params_of(training);
        comm.broadcast(first.view(), 0);
        EXPECT_TRUE(same_bytes(own.view(), first.view()))
            << name << to_string(dtype);
      });
}

TEST(OuterEngine, SaysWhatTravels) {
  const KeptLog log;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Sharded training(comm, outer_config("adam"));
    for (std::int64_t t = 1; t <= 5; ++t) {
      const EngineReport report = training.step({t});
      EXPECT_EQ(report.drift > 0, t == 5);
      const std::string line = telemetry_line(report, {});
      for (const char* key : {"\"drift\":", "\"rho\":"})
        EXPECT_EQ(line.find(key) != std::string::npos, t == 5);
    }
  });
  EXPECT_EQ(log.with("from now on ranks exchange what up to 3 local steps have "
                     "changed")
                .size(),
            1u);
}

TEST(OuterConfig, NamesWhatDoesNotGoWithIt) {
  const auto refused = [](const std::string& text,
                          std::initializer_list<std::string_view> parts) {
    expect_invalid(parts, [&] { Config::from_json(text).validate(2); });
  };
  const std::string outer = R"("thinwire": {"outer": {"sync_every": 4})";
  refused(R"({"optimizer": {"type": "ZeroOneAdam"}, )" + outer + "}}",
          {"adam, lamb or onebit_adam", "zero_one_adam"});
  refused(R"({"optimizer": {"type": "OneBitLamb"}, )" + outer + "}}",
          {"adam, lamb or onebit_adam", "onebit_lamb"});
  refused(R"({"zero_optimization": {"stage": 1}, )" + outer + "}}",
          {"zero.stage", "0 with an outer loop", "got 1"});
  refused("{" + outer + R"(, "lagged_clipping": true}})",
          {"lagged_clipping", "false with an outer loop"});
  refused("{" + outer + R"(, "fallback": "hold"}})",
          {"fallback", "off or warn with an outer loop"});
  refused("{" + outer + R"(, "semantics": "deepspeed"}})",
          {"semantics", "corrected"});
  refused(R"({"optimizer": {"type": "OneBitAdam"}, )" + outer +
              R"(, "auto_freeze": true}})",
          {"freeze_step", "automatic"});
  refused(R"({"optimizer": {"type": "OneBitAdam"}, )" + outer +
              R"(, "warmup_bits": 4}})",
          {"warmup_bits", "unset", "outer.warmup_bits"});
  refused(R"({"optimizer": {"type": "OneBitAdam",
              "params": {"freeze_step": 10}},
              "thinwire": {"outer": {"sync_every": 4, "warmup_steps": 5}}})",
          {"outer.warmup_steps", "10", "got 5"});
  refused(R"({"thinwire": {"outer": {"momentum": 0.5}}})",
          {"outer.sync_every", ">= 1", "got 0"});
  refused(R"({"thinwire": {"outer": {"sync_every": 4, "bits_up": 2}}})",
          {"outer.bits_up", "0, 4 or 8", "got 2"});
  EXPECT_EQ(Config::from_json(R"({"optimizer": {"type": "OneBitAdam",
                "params": {"freeze_step": 10}}, )" +
                              outer + "}}")
                .outer_options()
                .warmup_steps,
            10);
}

}  // namespace
}  // namespace thinwire::engine::test::engine_outer_test
