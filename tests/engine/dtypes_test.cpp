// SPDX-License-Identifier: Apache-2.0
// fp32 parameters beside those of 16 bits, in one optimizer.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include "engine/by_hand.h"
#include "optim/low_bit/options.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/ranks.h"
#include "support/values.h"
#include "thinwire/checkpoint/inspect.h"
#include "thinwire/engine/engine.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::engine::test::dtypes_test {
namespace {

// Groups have parameters of both dtypes; no size is a multiple of anything.
std::vector<ParameterSpec> narrow_specs() {
  return {{"w", {37, 70}, 0}, {"none", {0}, 1}, {"b", {1025}, 1}};
}
std::vector<ParameterSpec> wide_specs() {
  return {{"norm", {71, 19}, 1}, {"one", {1}, 0}, {"last", {613}, 0}};
}
std::vector<ParameterSpec> all_specs() {
  auto all = narrow_specs();
  for (const ParameterSpec& spec : wide_specs()) all.push_back(spec);
  return all;
}

std::vector<float> values_of(const Parameter& p, int step, int rank) {
  const auto seed = static_cast<std::uint32_t>(
      std::hash<std::string>{}(fmt::format("{} {} {}", p.name, step, rank)));
  std::vector<float> values = normal(p.size, seed);
  for (float& value : values) value *= 0.05F;
  return values;
}

// A parameter whose gradient is not finite, and the rank.
struct Broken {
  std::string name{};
  int rank = 0;
};

std::vector<float> all_values(const ParameterLayout& layout, int step,
                              int rank) {
  std::vector<float> all;
  for (const Parameter& p : layout.parameters()) {
    const std::vector<float> values = values_of(p, step, rank);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

struct Trained : Sharded {
  Trained(comm::Communicator& communicator, const Config& config,
          const std::vector<ParameterSpec>& specs, std::size_t num_wide)
      : Sharded(communicator, config,
                {.layout = ParameterLayout::of(specs, 2),
                 .num_wide = num_wide,
                 .from_floats = config.precision.dtype != DType::kFloat32,
                 .start = [](const ParameterLayout& of, int /*rank*/) {
                   return all_values(of, -1, 0);
                 }}) {}

  void backward(int t, const Broken& broken = {}) {
    std::vector<float> all = all_values(layout, t, comm.rank());
    for (const Parameter& p : layout.parameters())
      if (p.name == broken.name && comm.rank() == broken.rank)
        all[p.offset + p.size / 2] = std::numeric_limits<float>::infinity();
    for (float& g : all) g *= static_cast<float>(engine.loss_factor());
    backward_of(all);
  }
  EngineReport step(int t, const Broken& broken = {}) {
    const auto backwards = engine.config().gradient_accumulation_steps;
    for (int k = 1; k < backwards.value_or(1); ++k) {
      backward(1000 + t);
      engine.step();
    }
    backward(t, broken);
    return engine.step();
  }

  // Returns the values that the model computes with.
  Values of_model() {
    Values all_values;
    for (const Parameter& p : layout.parameters()) {
      std::vector<float>& own = all_values[p.name];
      own.resize(p.size);
      kernels::convert(all_params().subview(p.offset, p.size), own);
    }
    return all_values;
  }
};

Trained mixed(comm::Communicator& comm, const Config& config) {
  return {comm, config, all_specs(), wide_specs().size()};
}

// Each part in an optimizer of its own.
struct Apart {
  Apart(comm::Communicator& comm, const Config& config)
      : narrow(comm, config, narrow_specs(), 0),
        wide(comm, in_fp32(config), wide_specs(), 0) {}

  static Config in_fp32(Config config) {
    config.precision = {};
    config.zero.wire = {};
    config.accumulation_dtype = DType::kFloat32;
    std::visit(
        [&config](const auto& options) {
          using Options = std::decay_t<decltype(options)>;
          if constexpr (std::is_same_v<Options, optim::OnebitAdamOptions> ||
                        std::is_same_v<Options, optim::ZeroOneAdamOptions>)
            config.optimizer = optim::adam_options(options);
        },
        Config(config).optimizer);
    return config;
  }
  void step(int t) {
    narrow.step(t);
    wide.step(t);
  }
  Trained::Values masters() {
    Trained::Values all = narrow.masters();
    all.merge(wide.masters());
    return all;
  }

  Trained narrow;
  Trained wide;
};

Config of(DType dtype, int stage, int backwards = 1) {
  optim::AdamOptions adam{.learning_rate = 1e-2, .weight_decay = 0.1};
  adam.groups.resize(2);
  adam.groups[0].weight_decay = 0.1;
  adam.groups[1].learning_rate = 3e-3;
  Config config{.optimizer = adam};
  config.gradient_accumulation_steps = backwards;
  config.precision.dtype = dtype;
  config.precision.loss_scale = {.initial_scale = 256, .dynamic = false};
  config.zero.stage = stage;
  config.comm.bucket_elements = 1024;
  return config;
}

Config in_few_bits(DType dtype, int stage, int up = 4, int down = 4) {
  Config config = of(dtype, stage);
  config.zero.wire = {.bits_up = up, .bits_down = down};
  return config;
}

Config one_bit(DType dtype) {
  Config config = of(dtype, 0);
  config.optimizer =
      optim::OnebitAdamOptions{.learning_rate = 1e-2, .freeze = {.step = 3}};
  return config;
}

Config zero_one(DType dtype) {
  Config config = of(dtype, 0);
  config.optimizer = optim::ZeroOneAdamOptions{.learning_rate = 1e-2,
                                               .var_freeze_step = 2,
                                               .local_step_scaler = 2,
                                               .local_step_clipper = 2};
  return config;
}

std::vector<Config> every_way(DType dtype) {
  Config lamb = of(dtype, 0);
  lamb.optimizer = optim::LambOptions{.learning_rate = 1e-2};
  Config lamb_in_shards = lamb;
  lamb_in_shards.zero.stage = 2;
  Config wide_wire = of(dtype, 1);
  wide_wire.communication_dtype = DType::kFloat32;
  return {of(dtype, 0),
          of(dtype, 1),
          of(dtype, 2),
          of(dtype, 0, 3),
          of(dtype, 1, 3),
          of(dtype, 2, 3),
          lamb,
          lamb_in_shards,
          wide_wire,
          in_few_bits(dtype, 1),
          in_few_bits(dtype, 2),
          in_few_bits(dtype, 2, 8, 0),
          in_few_bits(dtype, 1, 0, 4),
          one_bit(dtype),
          zero_one(dtype)};
}

std::string name_of(const Config& config) {
  return fmt::format("{} {} at stage {}, {} backwards, {} bits up, {} down",
                     config::name_of(config.optimizer),
                     to_string(config.precision.dtype), config.zero.stage,
                     config.gradient_accumulation_steps.value_or(1),
                     config.zero.wire.bits_up, config.zero.wire.bits_down);
}

class Dtypes : public ::testing::TestWithParam<std::tuple<int, DType>> {
 protected:
  void on_ranks(const std::function<void(comm::Communicator&)>& body) {
    comm::run_local_ranks(std::get<0>(GetParam()), body, kPatient);
  }
  static DType dtype() { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(All, Dtypes,
                         ::testing::Values(std::tuple(1, DType::kFloat16),
                                           std::tuple(2, DType::kBFloat16),
                                           std::tuple(3, DType::kFloat16)),
                         [](const auto& tested) {
                           return fmt::format(
                               "{}_w{}", to_string(std::get<1>(tested.param)),
                               std::get<0>(tested.param));
                         });

// ---- training

TEST_P(Dtypes, EachPartTrainsAsInASeparateOptimizer) {
  on_ranks([](comm::Communicator& comm) {
    for (const Config& config : every_way(dtype())) {
      Trained both = mixed(comm, config);
      Apart apart(comm, config);
      for (int t = 0; t < 7; ++t) {
        EXPECT_TRUE(both.step(t).applied);
        apart.step(t);
      }
      const auto want = apart.masters();
      for (const auto& [name, values] : both.masters())
        EXPECT_EQ(values, want.at(name)) << name << ", " << name_of(config);
      // fp32 parameters are their masters.
      const auto of_model = both.of_model();
      for (const auto& [name, values] : apart.wide.masters())
        EXPECT_EQ(of_model.at(name), values) << name << name_of(config);
      for (const auto& [name, values] : apart.narrow.of_model())
        EXPECT_EQ(of_model.at(name), values) << name << name_of(config);
    }
  });
}

// exp_avg of the first step is (1 - beta1) of the clipped gradient.
TEST_P(Dtypes, AreClippedByOneNorm) {
  on_ranks([](comm::Communicator& comm) {
    for (Config config : every_way(dtype())) {
      const bool is_compressed = config.zero.wire.bits_up != 0;
      Apart apart(comm, config);
      const double narrow = apart.narrow.step(0).grad_norm;
      const double wide = apart.wide.step(0).grad_norm;
      const double norm = std::hypot(narrow, wide);
      config.gradient_clipping = norm / 2;
      Trained both = mixed(comm, config);
      const EngineReport report = both.step(0);
      EXPECT_NEAR(report.grad_norm, norm, 1e-9 * norm) << name_of(config);
      EXPECT_NEAR(report.clip_factor, 0.5, 1e-6);
      if (is_compressed) continue;
      for (Trained* part : {&apart.narrow, &apart.wide})
        for (const Parameter& p : part->layout.parameters()) {
          const auto half = both.engine.whole_values().state(p.name, "exp_avg");
          const auto full =
              part->engine.whole_values().state(p.name, "exp_avg");
          for (std::size_t i = 0; i < half.size(); ++i)
            ASSERT_NEAR(half[i], full[i] / 2, 1e-6 * std::abs(full[i]))
                << p.name << ", " << name_of(config);
        }
    }
  });
}

TEST_P(Dtypes, AnythingThatIsNotFiniteSkipsTheStepOnAllRanks) {
  on_ranks([](comm::Communicator& comm) {
    for (Config config : every_way(dtype()))
      for (const Broken& broken :
           {Broken{"one", comm.size() - 1}, Broken{"b", 0}})
        for (const int warm : {1, 5}) {
          config.precision.loss_scale = {.initial_scale = 256, .hysteresis = 1};
          Trained run = mixed(comm, config);
          for (int t = 0; t < warm; ++t) run.step(t);
          const auto before = run.masters();
          const bool is_local =
              run.engine.optimizer().progress().phase == optim::Phase::kLocal;
          const auto report = run.step(9, broken);
          // With bf16 0/1 Adam's local steps agree on nothing: a rank leaves
          // its own out.
          if (is_local && dtype() == DType::kBFloat16) continue;
          EXPECT_FALSE(report.applied) << broken.name << name_of(config);
          EXPECT_EQ(run.masters(), before) << broken.name << name_of(config);
          EXPECT_EQ(run.engine.loss_scale(),
                    dtype() == DType::kFloat16 ? 128 : 1);
          EXPECT_TRUE(run.step(warm).applied);
        }
  });
}

// ---- checkpoints

TEST_P(Dtypes, ContinueFromACheckpointWithTheSameBits) {
  const Folder folder;
  on_ranks([&](comm::Communicator& comm) {
    int saves = 0;
    for (const Config& config : every_way(dtype())) {
      const std::string root = folder.in(std::to_string(saves++));
      Trained run = mixed(comm, config);
      for (int t = 0; t < 4; ++t) run.step(t);
      const std::string path = run.engine.save(root, {}, kQuick).path;
      EXPECT_TRUE(checkpoint::verify(path).good());
      const StateDict state = run.engine.state_dict();
      Trained loaded = mixed(comm, config);
      Trained from_memory = mixed(comm, config);
      loaded.step(70);
      loaded.engine.load(path);
      from_memory.engine.load_state_dict(state);
      EXPECT_EQ(loaded.of_model(), run.of_model()) << name_of(config);
      EXPECT_EQ(from_memory.masters(), run.masters()) << name_of(config);
      for (int t = 4; t < 7; ++t) {
        run.step(t);
        loaded.step(t);
        from_memory.step(t);
      }
      EXPECT_EQ(loaded.masters(), run.masters()) << name_of(config);
      EXPECT_EQ(from_memory.of_model(), run.of_model()) << name_of(config);
    }
  });
}

// By any stage, and by runs in which all parameters are of one dtype.
TEST_P(Dtypes, CheckpointsLoadOnAnyNumberOfRanks) {
  const Folder folder;
  Trained::Values saved;
  Trained::Values states;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    for (const int stage : {0, 1, 2, 3}) {
      Trained run = mixed(
          comm, stage == 3 ? in_few_bits(dtype(), 2) : of(dtype(), stage));
      for (int t = 0; t < 3; ++t) run.step(t);
      run.engine.save(folder.in(std::to_string(stage)), {}, kQuick);
      if (stage != 0) continue;
      Trained::Values masters = run.masters();
      if (comm.rank() != 0) continue;
      saved = std::move(masters);
      for (const Parameter& p : run.layout.parameters())
        states[p.name] = run.engine.whole_values().state(p.name, "exp_avg_sq");
    }
  });
  on_ranks([&](comm::Communicator& comm) {
    for (const int from : {0, 1, 2, 3}) {
      const std::vector<Config> configs = {
          of(dtype(), 0), of(dtype(), 1), of(dtype(), 2),
          in_few_bits(dtype(), 1), of(DType::kFloat32, 2)};
      for (const Config& config : configs) {
        const bool is_narrow = config.precision.dtype != DType::kFloat32;
        Trained run(comm, config, all_specs(),
                    is_narrow ? wide_specs().size() : 0);
        run.step(33);
        run.engine.load(folder.in(std::to_string(from)));
        const auto values = run.masters();
        if (from < 3) {
          EXPECT_EQ(values, saved) << from << name_of(config);
          for (const Parameter& p : run.layout.parameters())
            EXPECT_EQ(run.engine.whole_values().state(p.name, "exp_avg_sq"),
                      states.at(p.name));
        }
        if (is_narrow && config.zero.wire.is_exact()) {
          const auto of_model = run.of_model();
          for (const ParameterSpec& spec : wide_specs())
            EXPECT_EQ(of_model.at(spec.name), values.at(spec.name));
        }
        EXPECT_TRUE(run.step(5).applied);
      }
    }
  });
}

// ---- what is refused

TEST(DtypesRefused, ByNameBeforeAnythingHasChanged) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    const auto refused = [&](const Config& config,
                             std::initializer_list<std::string_view> parts) {
      expect_invalid(parts, [&] { static_cast<void>(mixed(comm, config)); });
    };
    Config reference = of(DType::kFloat16, 0);
    reference.semantics = config::Semantics::kDeepSpeed;
    refused(reference, {"semantics must be corrected", "two dtypes"});
    Config lean = of(DType::kBFloat16, 0);
    lean.optimizer = lean::LeanOnebitAdamOptions{};
    refused(lean, {"optimizer must be another one than lean_onebit_adam"});
    for (const int stage : {0, 1}) {
      Config own = of(DType::kBFloat16, stage);
      own.precision.master_dtype = DType::kBFloat16;
      refused(own, {"master_dtype must be float32 with parameters of two"});
      Config experts = of(DType::kBFloat16, stage);
      std::get<optim::AdamOptions>(experts.optimizer).groups[1].communicator =
          &comm;
      refused(experts, {"experts must be none with parameters of two dtypes"});
    }
  });
}

}  // namespace
}  // namespace thinwire::engine::test::dtypes_test
