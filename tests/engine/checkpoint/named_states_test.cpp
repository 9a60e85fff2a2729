// SPDX-License-Identifier: Apache-2.0
// Weights and states that others wrote, a tensor for each parameter: what an
// Engine goes on from as from a checkpoint of Adam.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "checkpoint/tiny_checkpoint.h"
#include "engine/by_hand.h"
#include "engine/checkpoint/saved.h"
#include "support/errors.h"
#include "support/folder.h"
#include "thinwire/comm/local.h"

namespace thinwire::engine::test::named_states_test {
namespace {

using checkpoint::test::Content;
using Floats = std::vector<float>;

constexpr std::int64_t kSteps = 3;

Config config_of(const std::string& optimizer, int stage = 0,
                 DType dtype = DType::kFloat32) {
  Config config{.optimizer = optimizer_case(optimizer)};
  config.precision.dtype = dtype;
  config.comm.bucket_elements = 16384;
  if (stage > 0) {
    config.zero.stage = stage;
    config.zero.reduce_bucket_size = 5000;
  }
  return config;
}

// A file as others write it: its tensors one after the other.
struct File {
  std::vector<Content> tensors{};

  // PREFIX and the name of each parameter, of one flat array.
  void add(const std::string& prefix, const Floats& values) {
    const ParameterLayout layout = model_layout();
    for (const Parameter& p : layout.parameters())
      tensors.push_back(Content::of(
          prefix + p.name, p.shape,
          Floats(values.data() + p.offset, values.data() + p.offset + p.size)));
  }
  void add_step(std::int64_t step) {
    tensors.push_back(Content::of("step", {}, std::vector{step}));
  }
  Content& find(const std::string& name) {
    for (Content& tensor : tensors)
      if (tensor.name == name) return tensor;
    throw std::invalid_argument(name);
  }
  void write(const std::string& path) const {
    checkpoint::test::write_file(path,
                                 checkpoint::test::safetensors_of(tensors));
  }
};

// The states of two ranks after kSteps of Adam, as files of others.
struct Foreign {
  Foreign() {
    Saved saved(save_run(2, config_of("adam"), folder.in("run"), kSteps));
    params = saved.params();
    m = saved.array("exp_avg");
    v = saved.array("exp_avg_sq");
    File weights;
    weights.add("", params);
    std::filesystem::create_directory(here());
    weights.write(here() + "/model.safetensors");
    write([](File&) {});
  }
  void write(const std::function<void(File&)>& change) const {
    File states;
    states.add("exp_avg/", m);
    states.add("exp_avg_sq/", v);
    states.add_step(kSteps);
    change(states);
    states.write(here() + "/optimizer.safetensors");
  }
  [[nodiscard]] std::string here() const { return folder.in("others"); }

  const Folder folder{};
  Floats params, m, v;
};

TEST(NamedStates, AreTakenByAnyNumberOfRanksAndAnyStage) {
  const Foreign foreign;
  for (const int stage : {0, 1, 2})
    for (const int world : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("stage {}, {} ranks", stage, world));
      const std::string root =
          foreign.folder.in(fmt::format("{}-{}", stage, world));
      comm::run_local_ranks(world, [&](comm::Communicator& comm) {
        Sharded run(comm, config_of("adam", stage));
        const auto loaded = run.engine.load(foreign.here());
        EXPECT_EQ(loaded.step, kSteps);
        EXPECT_EQ(run.engine.optimizer().progress().steps, kSteps);
        EXPECT_EQ(run.engine.optimizer().groups().learning_rate(1), 0.03);
        run.engine.save(root, {}, kQuick);
      });
      Saved saved(root + fmt::format("/step-{:010}", kSteps));
      EXPECT_EQ(saved.params(), foreign.params);
      EXPECT_EQ(saved.array("exp_avg"), foreign.m);
      EXPECT_EQ(saved.array("exp_avg_sq"), foreign.v);
    }
}

TEST(NamedStates, HaveMastersOrMakeThemOfTheWeights) {
  const Foreign foreign;
  Floats masters = foreign.params;
  for (const bool has_masters : {false, true}) {
    if (has_masters) {
      for (float& value : masters) value += 1e-4f;
      foreign.write([&](File& states) { states.add("masters/", masters); });
    }
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Sharded run(comm, config_of("adam", 0, DType::kBFloat16));
      run.engine.load(foreign.here());
      EXPECT_EQ(floats(run.engine.masters()), masters);
    });
  }
}

TEST(NamedStates, AreAdamsOrLambs) {
  const Foreign foreign;
  for (const char* optimizer : {"onebit_adam", "lamb", "onebit_lamb"})
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Sharded run(comm, config_of(optimizer));
      run.engine.load(foreign.here());
      EXPECT_EQ(run.engine.optimizer().progress().steps, kSteps);
      EXPECT_EQ(floats(run.params.view()), foreign.params);
      for (std::int64_t t = kSteps + 1; t <= kSteps + 3; ++t) {
        run.step({t});
        EXPECT_EQ(run.engine.optimizer().progress().steps, t) << optimizer;
      }
    });
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Sharded run(comm, config_of("zero_one_adam"));
    expect_error(ErrorCode::kCorruptCheckpoint,
                 {"adam", "zero_one_adam", "kWeights"},
                 [&] { run.engine.load(foreign.here()); });
  });
}

TEST(NamedStates, ThatDoNotFitAreRefusedByName) {
  const Foreign foreign;
  const auto refused = [&](const char* what,
                           const std::function<void(File&)>& change) {
    foreign.write(change);
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Sharded run(comm, config_of("adam"));
      const Floats before = floats(run.params.view());
      expect_error(ErrorCode::kCorruptCheckpoint, {what},
                   [&] { run.engine.load(foreign.here()); });
      EXPECT_EQ(floats(run.params.view()), before);
      EXPECT_EQ(run.engine.optimizer().progress().steps, 0);
    });
  };
  refused("'step' must be one int64",
          [](File& states) { states.find("step").name = "steps"; });
  refused("'step' must be one int64", [](File& states) {
    states.find("step").bytes = std::string(8, '\xff');
  });
  refused("'exp_avg_sq/block' must be float32 of the shape", [](File& states) {
    states.find("exp_avg_sq/block").shape = {5, 205};
  });
  refused("'exp_avg/block' must be float32 of the shape", [](File& states) {
    states.find("exp_avg/block").type.dtype = DType::kInt32;
  });
  refused("of 'block' are in no file of exp_avg", [](File& states) {
    states.find("exp_avg/block").name = "exp_avg/blocks";
  });
}

// Weights alone, as before.
TEST(NamedStates, AreLeftWhereWeightsAreAskedFor) {
  const Foreign foreign;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Sharded run(comm, config_of("adam"));
    run.engine.load(foreign.here(), {.what = checkpoint::What::kWeights});
    EXPECT_EQ(run.engine.optimizer().progress().steps, 0);
    EXPECT_EQ(floats(run.params.view()), foreign.params);
  });
}

}  // namespace
}  // namespace thinwire::engine::test::named_states_test
