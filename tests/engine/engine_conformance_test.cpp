// SPDX-License-Identifier: Apache-2.0
// Tests what DeepSpeed's checkpoints lose, by the numbers of
// docs/conformance.json. Runs with DeepSpeed's semantics: load_state_dict()
// forgets what the reference forgets, and checkpoints fit where their arrays
// do.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "engine/by_hand.h"
#include "engine/checkpoint/saved.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/ranks.h"
#include "support/same_bits.h"
#include "thinwire/comm/local.h"

namespace thinwire::engine::test::engine_conformance_test {
namespace {

namespace fs = std::filesystem;
using checkpoint::SaveOptions;
using checkpoint::What;

// Sizes that four ranks do not divide, in two groups.
ParameterLayout small_layout() {
  return ParameterLayout::of({{"a", {10}, 0}, {"b", {7}, 1}, {"c", {5}, 0}}, 2);
}

Config small_config(DType dtype, int stage = 0) {
  Config config = test::zero_config(stage, dtype);
  config.comm.bucket_elements = 16384;
  return config;
}

Model small(ParameterLayout of = small_layout()) {
  return {.layout = std::move(of)};
}

void expect_same_numbers(const std::string& a, const std::string& b) {
  Saved one(a);
  Saved two(b);
  EXPECT_EQ(one.params(), two.params());
  EXPECT_EQ(one.masters(), two.masters());
  EXPECT_EQ(one.array("exp_avg"), two.array("exp_avg"));
  EXPECT_EQ(one.array("exp_avg_sq"), two.array("exp_avg_sq"));
  EXPECT_EQ(one.manifest().step, two.manifest().step);
  EXPECT_EQ(one.manifest().scalars.integer("step"),
            two.manifest().scalars.integer("step"));
}

TEST(EngineCheckpoint, Item62NoFileHasPadding) {
  for (const int stage : {0, 1, 2}) {
    const Folder folder;
    Saved saved(save_run(4, small_config(DType::kBFloat16, stage),
                         folder.path(), 2, small()));
    int by_element = 0;
    for (const auto& array : saved.manifest().arrays) {
      if (array.axis != optim::Axis::kElement) continue;
      ++by_element;
      EXPECT_EQ(saved.arrays().num_values(array.name, -1), 22u) << array.name;
      std::size_t size = 0;
      for (std::size_t p = 0; p < 3; ++p)
        for (const auto& piece :
             saved.arrays().pieces(array.name, -1, p, {0, 10}))
          size += piece.range.size;
      EXPECT_EQ(size, 22u) << array.name;
    }
    EXPECT_EQ(by_element, 3);  // two moments, masters
  }
}

TEST(EngineCheckpoint, Item63NamesAndOrderRebuildTheParameters) {
  for (const std::size_t groups : {1, 2})
    for (const int stage : {0, 1, 2}) {
      const Folder folder;
      const auto layout = ParameterLayout::of(
          {{"z", {3, 4}, 0}, {"a", {7}, groups - 1}, {"m", {}, 0}}, groups);
      Config config = small_config(DType::kFloat16, stage);
      std::get<optim::AdamOptions>(config.optimizer).groups.resize(groups);
      std::vector<float> frozen{1, 2, 3};
      comm::run_local_ranks(3, [&](comm::Communicator& comm) {
        Sharded run(comm, config, small(layout));
        run.engine.set_others([&] {
          return Engine::Others{{{"frozen", {3}, View(frozen)}}, {}};
        });
        run.step({1});
        const auto path = run.engine.save(folder.path(), {}, kQuick).path;
        if (comm.rank() != 0) return;
        Saved saved(path);
        const auto& parameters = saved.manifest().parameters;
        ASSERT_EQ(parameters.size(), layout.parameters().size());
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          const Parameter& want = layout.parameters()[i];
          EXPECT_EQ(parameters[i].name, want.name);
          EXPECT_EQ(parameters[i].shape, want.shape);
          EXPECT_EQ(parameters[i].group, want.group);
        }
        EXPECT_EQ(saved.params(), floats(run.params.view()));
        std::vector<float> rounded = saved.masters();
        EXPECT_NE(rounded, saved.params());
        for (float& value : rounded) value = to_float(to_half(value));
        EXPECT_EQ(rounded, saved.params());
        std::vector<float> values(3);
        saved.weights().read("frozen", values);
        EXPECT_EQ(values, frozen);
      });
    }
}

TEST(EngineCheckpoint, Item65MastersComeFromFloatsWhereThereAreSome) {
  const Folder folder;
  const Config config = small_config(DType::kBFloat16, 2);
  const std::string path = save_run(2, config, folder.path(), 3, small());
  Saved saved(path);
  ASSERT_NE(saved.masters(), saved.params());
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Sharded run(comm, small_config(DType::kBFloat16), small());
    run.engine.load(path, {.what = What::kWeights});
    EXPECT_EQ(floats(run.engine.masters()), saved.masters());
    EXPECT_EQ(floats(run.params.view()), saved.params());
    EXPECT_EQ(run.engine.optimizer().progress().steps, 0);
  });
}

TEST(EngineCheckpoint, Item68SomeRanksHaveNothing) {
  const Model model =
      small(ParameterLayout::of({{"a", {2}, 0}, {"b", {}, 1}}, 2));
  for (const int stage : {0, 1, 2})
    for (const auto& [before, after] : {std::pair{4, 2}, {2, 4}, {4, 4}}) {
      const Folder folder;
      const Config config = small_config(DType::kBFloat16, stage);
      const auto path = save_run(before, config, folder.in("a"), 2, model);
      expect_same_numbers(
          path, save_run(after, config, folder.in("b"), 0, model, path));
      save_run(after, config, folder.in("c"), 1, model, path);
    }
}

TEST(EngineCheckpoint, Item71HalfContinuesInBFloat16) {
  for (const int stage : {0, 1, 2}) {
    const Folder folder;
    const auto path = save_run(2, small_config(DType::kFloat16, stage),
                               folder.in("a"), 3, small());
    const Config config = small_config(DType::kBFloat16, stage);
    Saved half(path);
    Saved now(save_run(2, config, folder.in("b"), 0, small(), path));
    EXPECT_EQ(now.masters(), half.masters());
    EXPECT_EQ(now.array("exp_avg"), half.array("exp_avg"));
    EXPECT_EQ(now.manifest().precision, "bf16");
    std::vector<float> rounded = half.masters();
    for (float& value : rounded) value = to_float(to_bfloat16(value));
    EXPECT_EQ(now.params(), rounded);
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Sharded run(comm, config, small());
      run.engine.load(path);
      EXPECT_EQ(run.engine.loss_scale(), 1);
      EXPECT_TRUE(run.step({4}).applied);
    });
  }
}

TEST(EngineCheckpoint, Item73FrozenWeightsAreLeftOutWhenAsked) {
  const Folder folder;
  std::vector<float> frozen(1000, 0.5f);
  std::string paths[2];
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Sharded run(comm, small_config(DType::kFloat32), small());
    run.engine.set_others([&] {
      return Engine::Others{{{"frozen", {10, 100}, View(frozen)}}, {}};
    });
    for (const bool with : {false, true}) {
      SaveOptions options = kQuick;
      options.frozen = with;
      const auto report =
          run.engine.save(folder.in(with ? "with" : "without"), {}, options);
      if (comm.rank() == 0) paths[with ? 1 : 0] = report.path;
    }
  });
  const auto bytes = [&](int i) {
    return fs::file_size(paths[i] + "/model.safetensors");
  };
  EXPECT_GE(bytes(1), bytes(0) + 4000);
  Saved without(paths[0]);
  EXPECT_TRUE(without.manifest().others.empty());
  EXPECT_EQ(without.weights().names(),
            (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_NE(Saved(paths[1]).weights().find("frozen"), nullptr);
  // A model that has them keeps them as they are.
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Sharded run(comm, small_config(DType::kFloat32), small());
    std::vector<float> own(1000, 2.0f);
    run.engine.set_others([&] {
      return Engine::Others{{{"frozen", {10, 100}, View(own)}}, {}};
    });
    run.engine.load(paths[0]);
    EXPECT_EQ(own, std::vector<float>(1000, 2.0f));
    run.engine.load(paths[1]);
    EXPECT_EQ(own, frozen);
  });
}

// ---- DeepSpeed's semantics

Config config_of(const std::string& optimizer) {
  Config config = test::config_of(optimizer);
  config.semantics = config::Semantics::kDeepSpeed;
  config.comm.bucket_elements = 700;
  return config;
}

struct Trained : Sharded {
  Trained(comm::Communicator& c, const Config& config,
          std::vector<ParameterSpec> specs = ordered_specs())
      : Sharded(c, config,
                {.layout = ParameterLayout::of(std::move(specs)),
                 .from_floats = false}) {}
};

// Only load_state_dict() forgets what the reference forgets. Buckets may have
// another size.
TEST(DeepSpeedState, ForgetsInLoadStateDictOnly) {
  for (const std::string optimizer :
       {"onebit_adam", "onebit_lamb", "zero_one_adam"}) {
    const Folder folder;
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      const Config config = config_of(optimizer);
      Trained main(comm, config);
      for (std::int64_t t = 1; t <= 8; ++t) main.step({t});
      main.engine.save(folder.in("run"), {}, kQuick);
      Config in_others = config;
      in_others.comm.bucket_elements = 5000;
      Trained kept(comm, in_others);
      kept.engine.load(folder.in("run"));
      Trained forgot(comm, config);
      forgot.engine.load(folder.in("run"));
      forgot.engine.load_state_dict(forgot.engine.state_dict());
      for (std::int64_t t = 9; t <= 11; ++t)
        for (Trained* const run : {&main, &kept, &forgot}) run->step({t});
      EXPECT_TRUE(same_bytes(kept.params.view(), main.params.view()));
      EXPECT_FALSE(same_bytes(forgot.params.view(), main.params.view()))
          << optimizer;
    });
  }
}

TEST(DeepSpeedCheckpoints, OfZeroOneAdamHasEveryRanksParameters) {
  const Folder folder;
  const Config config = config_of("zero_one_adam");
  std::vector<float> of_rank_0;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Trained main(comm, config);
    for (std::int64_t t = 1; t <= 7; ++t) main.step({t});
    if (comm.rank() == 0) of_rank_0 = floats(main.params.view());
    main.engine.save(folder.in("run"), {}, kQuick);
    EXPECT_EQ(floats(main.params.view()) == of_rank_0, comm.rank() == 0);
  });
  // The weights alone are rank 0's, on any number of ranks.
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    Trained other(comm, config);
    expect_error(ErrorCode::kCorruptCheckpoint,
                 {"2 ranks", "deepspeed semantics on 3"},
                 [&] { other.engine.load(folder.in("run")); });
    other.engine.load(folder.in("run"), {.what = checkpoint::What::kWeights});
    EXPECT_EQ(floats(other.params.view()), of_rank_0);
  });
}

TEST(DeepSpeedCheckpoints, RefusesWhatItsArraysDoNotFit) {
  const Folder folder;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const Config config = config_of("onebit_adam");
    Trained main(comm, config);
    for (std::int64_t t = 1; t <= 5; ++t) main.step({t});
    main.engine.save(folder.in("run"), {}, kQuick);
    std::vector<ParameterSpec> specs = ordered_specs();
    std::swap(specs[0], specs[1]);
    Trained turned(comm, config, specs);
    expect_error(ErrorCode::kCorruptCheckpoint, {"order", "'scalar'", "'wide'"},
                 [&] { turned.engine.load(folder.in("run")); });
  });
}

}  // namespace
}  // namespace thinwire::engine::test::engine_conformance_test
