// SPDX-License-Identifier: Apache-2.0
// Experts, which not all ranks hold, beside dense parameters.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include "engine/by_hand.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/ranks.h"
#include "support/values.h"
#include "thinwire/checkpoint/inspect.h"
#include "thinwire/engine/engine.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::engine::test::experts_test {
namespace {

constexpr int kWorld = 4;
constexpr int kExperts = 4;

// Who holds what: in `groups` groups, of which each rank's holds every
// groups-th expert; 0: there are no groups, all ranks hold all experts. With
// ZeRO experts lie between dense parameters, otherwise behind them.
struct Held {
  Held(comm::Communicator& comm, int number_of_groups, bool has_zero)
      : rank(comm.rank()), groups(std::max(number_of_groups, 1)) {
    if (number_of_groups > 0) holders = comm.split(rank % groups);
    std::vector<ParameterSpec> specs = {{"first", {40, 50}, 0}};
    const ParameterSpec last{"last", {1300}, 0};
    if (!has_zero) specs.push_back(last);
    for (int e = 0; e < kExperts; ++e)
      if (e % groups == rank % groups)
        for (const char* part : {"in", "out"})
          specs.push_back({fmt::format("expert.{}.{}", e, part), {35, 20}, 1});
    if (has_zero) specs.push_back(last);
    of_rank = ParameterLayout::of(std::move(specs));
  }
  // Of the ranks that share out all experts, each sends what is another's.
  [[nodiscard]] bool gets_from(int other) const {
    return other / groups == rank / groups;
  }

  int rank;
  int groups;
  std::unique_ptr<comm::Communicator> holders;
  ParameterLayout of_rank;
};

Config of_experts(Config config, const Held& held) {
  std::visit(
      [&](auto& options) {
        options.groups.resize(2);
        options.groups[1].communicator = held.holders.get();
      },
      config.optimizer);
  return config;
}

// Small multiples of a power of two: every sum is exact in 16 bits.
std::vector<float> contribution(const Parameter& p, int step, int rank) {
  std::vector<float> values;
  const auto seed = static_cast<unsigned>(
      std::hash<std::string>{}(fmt::format("{} {} {}", p.name, step, rank)));
  for (const std::uint32_t word : random_words(p.size, seed))
    values.push_back(static_cast<float>(static_cast<int>(word % 17) - 8) / 64);
  return values;
}

std::vector<float> all_values(
    const ParameterLayout& layout,
    const std::function<std::vector<float>(const Parameter&)>& of) {
  std::vector<float> all;
  for (const Parameter& p : layout.parameters()) {
    const std::vector<float> values = of(p);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

struct Trained : Held, Sharded {
  Trained(comm::Communicator& c, const Config& settings, int number_of_groups)
      : Held(c, number_of_groups, settings.zero.stage > 0),
        Sharded(c, of_experts(settings, *this),
                {.layout = of_rank,
                 .from_floats = false,
                 .start = [](const ParameterLayout& of, int /*rank*/) {
                   return all_values(of, [](const Parameter& p) {
                     return contribution(p, -1, 0);
                   });
                 }}) {}

  // `broken`: the rank whose first expert gets what is not finite.
  EngineReport step(int t, int broken = -1) {
    EngineReport report;
    const auto steps = engine.config().gradient_accumulation_steps.value_or(1);
    for (int k = 0; k < steps; ++k) {
      backward_of(gradients(1000 * k + t, broken));
      report = engine.step();
    }
    return report;
  }

 private:
  [[nodiscard]] std::vector<float> gradients(int t, int broken) const {
    return all_values(layout, [&](const Parameter& p) {
      std::vector<float> sum(p.size);
      for (int r = 0; r < kWorld; ++r) {
        if (p.group == 0 ? r != rank : !gets_from(r)) continue;
        const std::vector<float> part = contribution(p, t, r);
        for (std::size_t k = 0; k < p.size; ++k) sum[k] += part[k];
      }
      if (broken == rank && p.group == 1)
        sum[3] = std::numeric_limits<float>::infinity();
      return sum;
    });
  }
};

void expect_same_values(Trained& run, Trained& of_all,
                        const std::string& what) {
  const auto want = of_all.masters();
  for (const auto& [name, values] : run.masters())
    EXPECT_EQ(values, want.at(name)) << name << ", " << what;
}

Config exact(DType dtype, int stage) {
  Config config{.optimizer = optim::AdamOptions{.learning_rate = 1e-2,
                                                .weight_decay = 0.1}};
  config.precision.dtype = dtype;
  config.precision.loss_scale = {.initial_scale = 1, .dynamic = false};
  config.zero.stage = stage;
  return config;
}

std::vector<Config> exact_ways() {
  std::vector<Config> ways;
  for (const int stage : {0, 1, 2})
    for (const DType dtype : kDTypes) ways.push_back(exact(dtype, stage));
  return ways;
}

std::string name_of(const Config& config) {
  return fmt::format("{} {} at stage {}", config::name_of(config.optimizer),
                     to_string(config.precision.dtype), config.zero.stage);
}

Config one_bit() {
  return {.optimizer = optim::OnebitAdamOptions{.learning_rate = 1e-2,
                                                .freeze = {.step = 2}}};
}

// ---- training

TEST(Experts, TrainAsWhereEveryRankHoldsAll) {
  comm::run_local_ranks(kWorld, [](comm::Communicator& comm) {
    for (Config config : exact_ways())
      for (const int groups : {1, 2, 4})
        for (const int backwards : {1, 2}) {
          config.gradient_accumulation_steps = backwards;
          Trained run(comm, config, groups);
          Trained of_all(comm, config, 0);
          for (int t = 0; t < 4; ++t) {
            const auto report = run.step(t);
            EXPECT_NEAR(report.grad_norm, of_all.step(t).grad_norm, 1e-9);
            EXPECT_TRUE(report.applied);
          }
          expect_same_values(run, of_all, name_of(config));
        }
  });
}

TEST(Experts, AreClippedByTheNormOfTheWholeModel) {
  comm::run_local_ranks(kWorld, [](comm::Communicator& comm) {
    for (const int stage : {0, 1, 2}) {
      Config config = exact(DType::kFloat32, stage);
      config.gradient_clipping = 0.5;
      Trained run(comm, config, 2);
      Trained of_all(comm, config, 0);
      for (int t = 0; t < 3; ++t) {
        const auto report = run.step(t);
        EXPECT_LT(report.clip_factor, 1);
        EXPECT_NEAR(report.clip_factor, of_all.step(t).clip_factor, 1e-12);
      }
    }
  });
}

// One engine counts all parameters, and two others share them.
TEST(ModelParallel, LeavesOutWhatCountsElsewhere) {
  comm::run_local_ranks(kWorld, [](comm::Communicator& comm) {
    std::vector<Config> ways = exact_ways();
    ways.push_back(one_bit());
    const auto alone = comm.split(comm.rank());
    for (const Config& config : ways) {
      Trained all(comm, config, 2);
      Trained first(comm, config, 2);
      Trained second(comm, config, 2);
      all.engine.set_model_parallel(*alone);
      first.engine.set_model_parallel(*alone,
                                      std::vector<std::size_t>{1, 2, 5});
      second.engine.set_model_parallel(*alone,
                                       std::vector<std::size_t>{0, 3, 4});
      for (int t = 0; t < 2; ++t) {
        const double whole = all.step(t).grad_norm;
        const double part = first.step(t).grad_norm;
        EXPECT_NEAR(std::hypot(part, second.step(t).grad_norm), whole, 1e-9)
            << name_of(config);
        EXPECT_GT(part, 0.1 * whole);
        EXPECT_LT(part, 0.9 * whole);
      }
      for (const auto& wrong : {std::vector<std::size_t>{2, 2}, {6}})
        expect_invalid({"uncounted must be"},
                       [&] { all.engine.set_model_parallel(*alone, wrong); });
    }
  });
}

TEST(Experts, AnOverflowInOneSkipsTheStepOnAllRanks) {
  comm::run_local_ranks(kWorld, [](comm::Communicator& comm) {
    Config local = one_bit();
    local.optimizer = optim::ZeroOneAdamOptions{
        .var_freeze_step = 1, .local_step_scaler = 1, .local_step_clipper = 4};
    for (const Config& config :
         {exact(DType::kFloat32, 0), exact(DType::kFloat16, 0),
          exact(DType::kFloat16, 1), exact(DType::kFloat16, 2),
          exact(DType::kFloat32, 2), one_bit(), local})
      for (const int warm : {1, 4})
        for (int guilty = 0; guilty < kWorld; ++guilty) {
          Trained run(comm, config, 2);
          for (int t = 0; t < warm; ++t) run.step(t);
          const auto before = run.masters();
          const auto params = run.all_params();
          const auto rounded = floats(params);
          EXPECT_FALSE(run.step(9, guilty).applied) << name_of(config) << warm;
          EXPECT_EQ(run.masters(), before) << name_of(config) << warm;
          EXPECT_EQ(floats(params), rounded) << name_of(config) << warm;
          EXPECT_EQ(run.engine.optimizer().progress().skipped, 1);
          EXPECT_TRUE(run.step(warm).applied);
        }
  });
}

// Experts get the bits of exact Adam with the same gradients.
TEST(Experts, StayExactInLowBitOptimizers) {
  comm::run_local_ranks(kWorld, [](comm::Communicator& comm) {
    Trained run(comm, one_bit(), 2);
    Config plain{.optimizer = optim::AdamOptions{.learning_rate = 1e-2}};
    Trained of_all(comm, plain, 0);
    for (int t = 0; t < 6; ++t) {
      const auto report = run.step(t);
      of_all.step(t);
      EXPECT_EQ(report.phase,
                t < 2 ? optim::Phase::kExact : optim::Phase::kCompressed);
    }
    const auto want = of_all.masters();
    for (const auto& [name, values] : run.masters()) {
      if (name.starts_with("expert")) {
        EXPECT_EQ(values, want.at(name)) << name;
        for (const char* key : {"exp_avg", "exp_avg_sq"})
          EXPECT_EQ(run.engine.whole_values().state(name, key),
                    of_all.engine.whole_values().state(name, key))
              << name << ", " << key;
      } else {
        EXPECT_NE(values, want.at(name)) << name;
        EXPECT_EQ(run.engine.whole_values().state(name, "exp_avg").size(),
                  values.size());
      }
    }
  });
}

// ---- checkpoints

TEST(Experts, ContinueInGroupsOfAnyOtherSize) {
  const Folder folder;
  comm::run_local_ranks(kWorld, [&](comm::Communicator& comm) {
    int saves = 0;
    for (const Config& config : exact_ways()) {
      const std::string root = folder.in(std::to_string(saves++));
      Trained run(comm, config, 2);
      for (int t = 0; t < 2; ++t) run.step(t);
      const std::string path = run.engine.save(root, {}, kQuick).path;
      EXPECT_TRUE(checkpoint::verify(path).good());
      std::vector<std::unique_ptr<Trained>> resumed;
      for (const int groups : {2, 1, 4, 0}) {
        resumed.push_back(std::make_unique<Trained>(comm, config, groups));
        resumed.back()->step(70);
        resumed.back()->engine.load(path);
      }
      // Another stage has the same states.
      Config other = config;
      other.zero.stage = (config.zero.stage + 1) % 3;
      resumed.push_back(std::make_unique<Trained>(comm, other, 4));
      resumed.back()->engine.load(path);
      for (int t = 2; t < 4; ++t) {
        run.step(t);
        for (const auto& one : resumed) one->step(t);
      }
      Trained* const of_all = resumed[3].get();
      expect_same_values(run, *of_all, name_of(config));
      for (const auto& one : resumed)
        expect_same_values(*one, *of_all, name_of(config));
    }
  });
}

TEST(Experts, OfLowBitOptimizersContinueInOtherGroups) {
  const Folder folder;
  comm::run_local_ranks(kWorld, [&](comm::Communicator& comm) {
    Config lamb;
    lamb.optimizer =
        optim::OnebitLambOptions{.learning_rate = 1e-2, .freeze = {.step = 2}};
    Config zero_one;
    zero_one.optimizer =
        optim::ZeroOneAdamOptions{.learning_rate = 1e-2, .var_freeze_step = 2};
    Config half = zero_one;
    half.precision.dtype = DType::kBFloat16;
    int saves = 0;
    for (const Config& config : {one_bit(), lamb, zero_one, half})
      for (const int steps : {1, 4}) {
        Trained run(comm, config, 2);
        for (int t = 0; t < steps; ++t) run.step(t);
        const std::string path =
            run.engine.save(folder.in(std::to_string(saves++)), {}, kQuick)
                .path;
        Trained same(comm, config, 2);
        Trained other(comm, config, 4);
        same.engine.load(path);
        other.engine.load(path);
        for (int t = steps; t < steps + 3; ++t) {
          run.step(t);
          same.step(t);
          other.step(t);
        }
        const auto values = run.masters();
        EXPECT_EQ(same.masters(), values) << name_of(config) << steps;
        for (const auto& [name, of_other] : other.masters())
          // LAMB's norms are sums in another order.
          for (std::size_t i = 0; values.contains(name) && i < of_other.size();
               ++i)
            ASSERT_NEAR(of_other[i], values.at(name)[i], 1e-6) << name;
      }
  });
}

TEST(Experts, WithOneNameForTwoAreNotSaved) {
  const Folder folder;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const auto alone = comm.split(comm.rank());
    Config config{.optimizer = optim::AdamOptions{
                      .groups = {{}, {.communicator = alone.get()}}}};
    Sharded run(comm, config,
                {.layout = ParameterLayout::of(
                     {{"dense", {10}, 0}, {"expert", {10}, 1}}),
                 .from_floats = false});
    expect_error(kArgument, {"expert", "number"},
                 [&] { run.engine.save(folder.in("run"), {}, kQuick); });
  });
}

// ---- what is refused

TEST(Experts, AreRefusedWhereNobodyKnowsThem) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    const ParameterLayout layout =
        ParameterLayout::of({{"dense", {10}, 0}, {"expert", {10}, 1}});
    const ParameterLayout turned =
        ParameterLayout::of({{"expert", {10}, 1}, {"dense", {10}, 0}});
    const auto refused = [&](Config config, const ParameterLayout& of,
                             std::string_view part) {
      std::visit(
          [&](auto& options) {
            options.groups.resize(2);
            options.groups[1].communicator = &comm;
          },
          config.optimizer);
      expect_error(kArgument, {part}, [&] {
        Sharded(comm, config, {.layout = of, .from_floats = false});
      });
    };
    Config config{.optimizer = optim::AdamOptions{}};
    refused(config, turned, "'dense' is out of this order");
    config.semantics = config::Semantics::kDeepSpeed;
    refused(config, layout, "semantics");
    config.semantics = config::Semantics::kCorrected;
    config.optimizer = lean::LeanOnebitAdamOptions{};
    refused(config, layout, "lean_onebit_adam");
  });
}

TEST(Experts, OfOneCommunicatorAreTheSameOnItsRanks) {
  comm::run_local_ranks(4, [](comm::Communicator& comm) {
    const auto holders = comm.split(comm.rank() / 2);
    const ParameterLayout layout = ParameterLayout::of(
        {{"dense", {10}, 0}, {comm.rank() == 3 ? "other" : "expert", {10}, 1}});
    Config config{.optimizer = optim::AdamOptions{
                      .groups = {{}, {.communicator = holders.get()}}}};
    expect_error(kArgument, {comm.rank() < 2 ? "gave up" : "other"}, [&] {
      Sharded(comm, config, {.layout = layout, .from_floats = false});
    });
  });
}

}  // namespace
}  // namespace thinwire::engine::test::experts_test
