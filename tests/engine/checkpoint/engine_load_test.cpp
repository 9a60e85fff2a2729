// SPDX-License-Identifier: Apache-2.0
// What an Engine goes on from: the newest checkpoint that is whole, or weights
// alone.
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/tiny_checkpoint.h"
#include "engine/by_hand.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/ranks.h"

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
    Driven run(comm, config);
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
    Driven run(comm, kAdam);
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
    Driven run(comm, kAdam);
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
    Driven run(comm, kAdam);
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
      Driven run(comm, kAdam);
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
    Driven run(comm, config_of("lamb", DType::kFloat32));
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
        Driven run(comm, config);
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
          Driven run(comm, config_of("adam", dtype));
          run.engine.load(path, {.what = What::kWeights});
          EXPECT_EQ(run.engine.optimizer().progress().steps, 0);
          EXPECT_TRUE(run.step({1}).applied);
          Driven again(comm, config_of("adam", dtype));
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

}  // namespace
}  // namespace thinwire::engine::test::engine_load_test
