// SPDX-License-Identifier: Apache-2.0
// Checkpoints that released versions have left: every later one loads them. See
// tests/golden/README.md.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/tiny_checkpoint.h"
#include "core/json_text.h"
#include "engine/by_hand.h"
#include "engine/checkpoint/saved.h"
#include "support/folder.h"
#include "support/ranks.h"
#include "thinwire/checkpoint/inspect.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/checksum.h"

namespace thinwire::engine::test::checkpoint_fixtures_test {
namespace {

namespace fs = std::filesystem;

constexpr int kRanks = 2;
constexpr std::int64_t kSaved = 8;  // steps; then kMore to compare
constexpr std::int64_t kMore = 3;

struct Fixture {
  const char* name;
  const char* optimizer;
  DType dtype = DType::kFloat32;
  int stage = 0;
};
constexpr Fixture kFixtures[] = {
    {"adam", "adam"},
    {"lamb", "lamb"},
    {"onebit_adam", "onebit_adam"},
    {"onebit_lamb", "onebit_lamb"},
    {"zero_one_adam", "zero_one_adam"},
    {"adam_bf16_zero1", "adam", DType::kBFloat16, 1}};

ParameterLayout fixture_layout() {
  return ParameterLayout::of(
      {{"w", {15, 16}, 0}, {"b", {33}, 1}, {"empty", {0}, 0}, {"scale", {}, 1}},
      2);
}

struct Small : Sharded {
  Small(comm::Communicator& c, const Fixture& of)
      : Sharded(c, config_of(of), {.layout = fixture_layout()}) {}

  static Config config_of(const Fixture& of) {
    Config config = test::zero_config(of.stage, of.dtype);
    config.optimizer = optimizer_case(of.optimizer);
    config.comm.bucket_elements = 16384;
    return config;
  }
  void steps(std::int64_t first, std::int64_t count) {
    for (std::int64_t t = first; t < first + count; ++t)
      ASSERT_TRUE(step({t}).applied);
  }
  [[nodiscard]] std::string checksum_of_params() const {
    return fmt::format("{:016x}", checksum(params.view()));
  }
};

// By parameter, so that it does not matter which rank has which part.
std::string checksum_of_array(Saved& saved, const char* name, int rank) {
  return fmt::format("{:016x}",
                     checksum(saved.arrays().read_all(name, rank).view()));
}
std::string checksum_of_weights(Saved& saved) {
  return fmt::format("{:016x}", checksum(saved.params()));
}
bool is_per_rank(const Saved& saved, const char* name) {
  for (const auto& array : saved.manifest().arrays)
    if (array.name == name) return checkpoint::SavedArrays::is_per_rank(array);
  return false;
}

// Of the checkpoint at `path`: what its ranks have once it is loaded, and after
// more steps. On another number of ranks only what is the same there.
JsonValue observed(const Fixture& of, const std::string& path, int world) {
  JsonValue all;
  const Folder folder;
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    Small run(comm, of);
    const auto loaded = run.engine.load(path);
    const std::string params = run.checksum_of_params();
    const auto again =
        run.engine.save(folder.path(), {}, {.durable = false}).path;
    run.steps(kSaved + 1, kMore);
    const auto texts = comm::gather_texts(comm, params);
    const auto later = comm::gather_texts(comm, run.checksum_of_params());
    if (comm.rank() != 0) return;
    Saved saved(again);
    all["step"] = loaded.step;
    all["weights"] = checksum_of_weights(saved);
    const bool differ = is_per_rank(saved, "exp_avg");
    for (int r = 0; r < world && (differ ? world == kRanks : r == 0); ++r)
      all[fmt::format("exp_avg_{}", r)] =
          checksum_of_array(saved, "exp_avg", r);
    if (world != kRanks) return;
    for (std::size_t r = 0; r < texts.size(); ++r) {
      all[fmt::format("params_{}", r)] = texts[r];
      all[fmt::format("params_{}_later", r)] = later[r];
    }
  });
  return all;
}

// FOLDER/NAME and FOLDER/NAME.json.
void write_fixture(const Fixture& of, const std::string& folder) {
  const std::string to = folder + '/' + of.name;
  fs::create_directories(folder);
  std::vector<std::string> later;
  comm::run_local_ranks(kRanks, [&](comm::Communicator& comm) {
    Small run(comm, of);
    run.steps(1, kSaved);
    const auto saved = run.engine.save(to + ".root");
    run.steps(kSaved + 1, kMore);
    const auto texts = comm::gather_texts(comm, run.checksum_of_params());
    if (comm.rank() != 0) return;
    later = texts;
    fs::rename(saved.path, to);
  });
  fs::remove_all(to + ".root");
  const JsonValue want = observed(of, to, kRanks);
  // Like the run that was not interrupted.
  for (std::size_t r = 0; r < later.size(); ++r)
    EXPECT_EQ(want.at(fmt::format("params_{}_later", r)), later[r]);
  std::ofstream(to + ".json") << write_json(want) << '\n';
}

void expect_loads(const Fixture& of, const std::string& path) {
  SCOPED_TRACE(path);
  EXPECT_TRUE(checkpoint::verify(path).good());
  const JsonValue want = read_json(checkpoint::test::read_file(path + ".json"));
  EXPECT_EQ(observed(of, path, kRanks), want);
  const JsonValue on_three = observed(of, path, 3);
  EXPECT_GE(on_three.size(), 2u);
  for (const auto& [name, value] : on_three.items())
    EXPECT_EQ(value, want.at(name)) << name;
}

void expect_all_load(const std::string& folder) {
  for (const Fixture& of : kFixtures) {
    const std::string path = folder + '/' + of.name;
    ASSERT_TRUE(fs::exists(path)) << path;
    expect_loads(of, path);
  }
  EXPECT_GT(Saved(folder + "/zero_one_adam").manifest().steps_behind, 0);
}

// THINWIRE_WRITE_CHECKPOINTS names the folder that they are to stay in.
TEST(CheckpointFixtures, CheckpointsOfThisVersionLoad) {
  const Folder folder;
  const char* const named = std::getenv("THINWIRE_WRITE_CHECKPOINTS");
  const std::string to = named != nullptr ? named : folder.in("now");
  for (const Fixture& of : kFixtures) write_fixture(of, to);
  expect_all_load(to);
}

TEST(CheckpointFixtures, OfEveryVersionLoad) {
  int versions = 0;
  for (const auto& version : fs::directory_iterator(THINWIRE_CHECKPOINTS)) {
    ++versions;
    expect_all_load(version.path().string());
  }
  EXPECT_GE(versions, 1);
}

TEST(CheckpointFixtures, WithMeansOfResidualsLoad) {
  for (const char* name : {"onebit_adam", "zero_one_adam"})
    expect_loads({name, name},
                 fmt::format("{}_with_means/{}", THINWIRE_CHECKPOINTS, name));
}

}  // namespace
}  // namespace thinwire::engine::test::checkpoint_fixtures_test
