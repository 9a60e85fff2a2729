// SPDX-License-Identifier: Apache-2.0
// An Engine resumes from the newest checkpoint that is whole, weights
// alone, or states that others wrote.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "checkpoint/tiny_checkpoint.h"
#include "engine/by_hand.h"
#include "engine/checkpoint/saved.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/ranks.h"
#include "thinwire/comm/local.h"

namespace thinwire::engine::test::engine_load_test {
namespace {

namespace fs = std::filesystem;
using checkpoint::What;

const Config kAdam = config_of("adam", DType::kFloat32);

// Checkpoints after steps 1, 2, ..., and the masters of each.
std::vector<std::vector<float>> save_steps(const std::string& root, int world,
                                           std::int64_t steps,
                                           const Config& config = kAdam) {
  std::vector<std::vector<float>> masters;
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    Sharded run(comm, config);
    for (std::int64_t t = 1; t <= steps; ++t) {
      run.step({t});
      run.engine.save(root, {}, {.durable = false});
      if (comm.rank() == 0) masters.push_back(floats(run.engine.masters()));
    }
  });
  return masters;
}

void flip_last_byte(const std::string& path) {
  std::string bytes = checkpoint::test::read_file(path);
  bytes.back() ^= 1;
  checkpoint::test::write_file(path, bytes);
}

TEST(EngineResume, IsAFreshStartWhereThereIsNothing) {
  const Folder folder;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Sharded run(comm, kAdam);
    EXPECT_FALSE(run.engine.resume(folder.in("nothing")));
    EXPECT_FALSE(run.engine.resume(folder.path()));
    expect_error(ErrorCode::kUnavailable, {folder.path()},
                 [&] { run.engine.load(folder.path()); });
  });
}

TEST(EngineResume, TakesTheNewestThatIsWhole) {
  const Folder folder;
  const auto masters = save_steps(folder.path(), 2, 3);
  fs::remove(folder.in("step-0000000003/state-00002-of-00002.safetensors"));
  fs::remove(folder.in("latest"));
  fs::create_directory(folder.in("step-0000000009"));
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Sharded run(comm, kAdam);
    const auto loaded = run.engine.resume(folder.path());
    ASSERT_TRUE(loaded);
    EXPECT_EQ(loaded->step, 2);
    EXPECT_EQ(floats(run.engine.masters()), masters[1]);
    ASSERT_EQ(loaded->notes.size(), 2u);
    EXPECT_NE((loaded->notes[0] + loaded->notes[1]).find("step-0000000003"),
              std::string::npos);
  });
}

TEST(EngineResume, StartsAnewOnlyIfNothingIsLost) {
  const Folder folder;
  save_steps(folder.path(), 2, 1);
  const std::string whole = folder.in("step-0000000001");
  const std::string partial = whole + ".partial-0123456789abcdef";
  fs::remove(whole + "/state-00002-of-00002.safetensors");
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Sharded run(comm, kAdam);
    const std::vector<float> before = floats(run.params.view());
    expect_error(ErrorCode::kCorruptCheckpoint,
                 {folder.path(), "step-0000000001", "it is missing",
                  "use another directory or delete it"},
                 [&] { run.engine.resume(folder.path()); });
    EXPECT_EQ(floats(run.params.view()), before);
    comm.barrier();
    // The remains of a first save that never returned.
    if (comm.rank() == 0) fs::rename(whole, partial);
    comm.barrier();
    EXPECT_FALSE(run.engine.resume(folder.path()));
  });
}

TEST(EngineResume, DamageIsNamedAndMayBeGoneAround) {
  for (const char* file :
       {"model.safetensors", "state-00001-of-00002.safetensors",
        "state-00002-of-00002.safetensors"}) {
    const Folder folder;
    const auto masters = save_steps(folder.path(), 2, 2);
    flip_last_byte(folder.in("step-0000000002/") + file);
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Sharded run(comm, kAdam);
      run.step({5});
      const std::vector<float> before = floats(run.params.view());
      expect_error(ErrorCode::kCorruptCheckpoint,
                   {file, "step-0000000001", "step-0000000002"},
                   [&] { run.engine.load(folder.path()); });
      EXPECT_EQ(floats(run.params.view()), before);
      EXPECT_EQ(run.engine.optimizer().progress().steps, 1);
      const auto loaded = run.engine.load(folder.path(), {.fall_back = true});
      EXPECT_EQ(loaded.step, 1);
      EXPECT_EQ(floats(run.engine.masters()), masters[0]);
      EXPECT_FALSE(loaded.notes.empty());
      EXPECT_EQ(run.step({6}).steps, 2);
    });
  }
}

// Another checkpoint of the same run would not fit either.
TEST(EngineResume, GoesBackForDamageOnly) {
  const Folder folder;
  save_steps(folder.path(), 2, 2);
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Sharded run(comm, config_of("lamb", DType::kFloat32));
    expect_error(ErrorCode::kCorruptCheckpoint, {"adam", "lamb"},
                 [&] { run.engine.load(folder.path(), {.fall_back = true}); });
  });
}

// 0/1 Adam keeps the parameters of its last exchange: those are others now.
TEST(EngineWeights, HoldInEveryPhase) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Config config = config_of("zero_one_adam", dtype);
    const Folder folder;
    const auto masters = save_steps(folder.path(), 2, 1, config);
    for (std::int64_t steps = 0; steps < 8; ++steps)
      comm::run_local_ranks(2, [&](comm::Communicator& comm) {
        Sharded run(comm, config);
        for (std::int64_t t = 1; t <= steps; ++t) run.step({t});
        run.engine.learning_rates().set(0);
        run.engine.load(folder.path(), {.what = What::kWeights});
        for (int i = 0; i < 3; ++i) {
          run.step({9 + i});
          EXPECT_EQ(floats(run.engine.masters()), masters[0]) << steps;
        }
      });
  }
}

TEST(EngineWeights, ComeAloneFromCheckpointsAndFromFiles) {
  for (const DType saved : {DType::kFloat32, DType::kBFloat16}) {
    const Folder folder;
    const auto masters =
        save_steps(folder.in("run"), 2, 2, config_of("adam", saved));
    const std::string newest = folder.in("run/step-0000000002/");
    fs::copy(newest + "model.safetensors", folder.in("alone.safetensors"));
    fs::create_directory(folder.in("hub"));
    fs::create_symlink(newest + "model.safetensors",
                       folder.in("hub/model.safetensors"));
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
      comm::run_local_ranks(2, [&](comm::Communicator& comm) {
        const auto load = [&](const std::string& path) {
          Sharded run(comm, config_of("adam", dtype));
          run.engine.load(path, {.what = What::kWeights});
          EXPECT_EQ(run.engine.optimizer().progress().steps, 0);
          EXPECT_TRUE(run.step({1}).applied);
          Sharded again(comm, config_of("adam", dtype));
          again.engine.load(path, {.what = What::kWeights});
          return floats(again.engine.masters());
        };
        EXPECT_EQ(load(folder.in("run")), masters[1]);
        std::vector<float> rounded = masters[1];
        if (saved == DType::kBFloat16)
          for (float& value : rounded) value = to_float(to_bfloat16(value));
        EXPECT_EQ(load(folder.in("alone.safetensors")), rounded);
        EXPECT_EQ(load(folder.in("hub")), rounded);
      });
  }
}

// ---- weights and states that others wrote, a tensor for each parameter

using checkpoint::test::Content;
using Floats = std::vector<float>;

constexpr std::int64_t kSteps = 3;

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
        Sharded run(comm, zero_config(stage));
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
      Sharded run(comm, config_of("adam", DType::kBFloat16));
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
}  // namespace thinwire::engine::test::engine_load_test
