// SPDX-License-Identifier: Apache-2.0
// ZeRO in few bits and lean 1-bit Adam from a checkpoint of other ranks, or of
// ranks on other hosts: parameters and masters are the same, and nothing that
// is owed is lost.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <variant>
#include <vector>

#include "engine/by_hand.h"
#include "support/folder.h"
#include "support/ranks.h"

namespace thinwire::engine::test::engine_few_bits_elastic_test {
namespace {

struct Ranks {
  int world = 1;
  int of_host = 1;
};

struct Case {
  Ranks saved;
  Ranks now;

  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << "w" << c.saved.world << "g" << c.saved.of_host << "_to_w"
               << c.now.world << "g" << c.now.of_host;
  }
};

Config zero(const Ranks& ranks, DType dtype) {
  Config config = test::zero_config(1, dtype);
  config.zero.wire = {
      .bits_up = 4, .bits_down = 4, .residual_dtype = DType::kFloat32};
  config.comm.ranks_per_host = ranks.of_host;
  return config;
}

// Frozen after its second step.
Config lean(const Ranks& ranks, DType dtype) {
  Config config{.optimizer = lean::LeanOnebitAdamOptions{
                    .learning_rate = 0.01,
                    .freeze = {.step = 2},
                    .compression = {.residual_dtype = DType::kFloat32}}};
  config.precision.dtype = dtype;
  config.comm.bucket_elements = 5000;
  config.comm.ranks_per_host = ranks.of_host;
  return config;
}

// Still in its exact steps, over 4 bits.
Config lean_warm_up(const Ranks& ranks, DType dtype) {
  Config config = lean(ranks, dtype);
  auto& options = std::get<lean::LeanOnebitAdamOptions>(config.optimizer);
  options.freeze = {.step = 20, .warmup_bits = 4};
  return config;
}

using MakeConfig = Config (*)(const Ranks&, DType);
constexpr MakeConfig kConfigs[] = {zero, lean, lean_warm_up};

// Collective: per element the mean over those that keep one of it.
std::vector<double> mean_of(const char* array, comm::Communicator& comm,
                            const Sharded& sharded) {
  const optim::State state = sharded.engine.optimizer().state();
  const optim::StateArray* const kept = state.find(array);
  const std::size_t n = sharded.layout.size();
  std::vector<double> sums(n), counts(n);
  if (kept != nullptr) {
    std::vector<float> values(kept->size);
    kept->read({0, kept->size}, values);
    std::size_t at = 0;
    for (const Range& range : kept->ranges)
      for (std::size_t i = range.offset; i < range.end(); ++i) {
        sums[i] += static_cast<double>(values[at++]);
        counts[i] += 1;
      }
  }
  comm.all_reduce(sums);
  comm.all_reduce(counts);
  for (std::size_t i = 0; i < n; ++i)
    if (counts[i] > 0) sums[i] /= counts[i];
  return sums;
}

// The workers' mean residuals, and the servers', which ZeRO does not have.
struct Owed {
  std::vector<double> workers;
  std::vector<double> servers;
};

Owed owed_by(comm::Communicator& comm, const Sharded& sharded) {
  return {mean_of(optim::kWorkerError, comm, sharded),
          mean_of("server_error", comm, sharded)};
}

// True: they are not all 0.
bool expect_same(const std::vector<double>& got,
                 const std::vector<double>& want) {
  bool is_zero = true;
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 1e-6 * std::abs(want[i]));
    is_zero = is_zero && got[i] == 0;
  }
  return !is_zero;
}

struct Saved {
  std::string path;
  std::vector<float> params;
  std::vector<std::vector<float>> masters;
  Owed owed;
};

std::vector<std::vector<float>> masters_of(Sharded& sharded) {
  std::vector<std::vector<float>> all;
  for (const Parameter& p : sharded.layout.parameters())
    all.push_back(sharded.engine.whole_values().parameter(p.name));
  return all;
}

// All of them, one after the other, as parameters of this dtype.
std::vector<float> rounded(const std::vector<std::vector<float>>& masters,
                           DType dtype) {
  std::vector<float> all;
  for (const auto& of_parameter : masters)
    all.insert(all.end(), of_parameter.begin(), of_parameter.end());
  Buffer kept(all.size(), dtype);
  kernels::convert(all, kept.view());
  return floats(kept.view());
}

Saved save(const Ranks& ranks, const Config& config, const std::string& root) {
  Saved saved;
  comm::run_local_ranks(ranks.world, [&](comm::Communicator& comm) {
    Sharded sharded(comm, config);
    for (std::int64_t t = 1; t <= 4; ++t) sharded.step({t});
    const auto masters = masters_of(sharded);
    const Owed owed = owed_by(comm, sharded);
    const std::string path =
        sharded.engine.save(root, {}, {.durable = false}).path;
    if (comm.rank() == 0)
      saved = {path, floats(sharded.params.view()), masters, owed};
  });
  return saved;
}

class FewBitsElastic : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    All, FewBitsElastic,
    ::testing::Values(Case{{2, 1}, {3, 1}}, Case{{3, 1}, {1, 1}},
                      Case{{4, 2}, {4, 1}}, Case{{4, 1}, {4, 2}},
                      Case{{4, 2}, {2, 1}}, Case{{4, 2}, {8, 4}}),
    ::testing::PrintToStringParamName());

TEST_P(FewBitsElastic, KeepsParametersMastersAndResiduals) {
  const Ranks now = GetParam().now;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const MakeConfig config_of : kConfigs) {
      const Folder root;
      const Saved saved = save(GetParam().saved,
                               config_of(GetParam().saved, dtype), root.path());
      comm::run_local_ranks(now.world, [&](comm::Communicator& comm) {
        Config config = config_of(now, dtype);
        if (config_of == lean_warm_up)  // the state has them
          std::get<lean::LeanOnebitAdamOptions>(config.optimizer)
              .freeze.warmup_bits.reset();
        Sharded sharded(comm, config);
        for (const std::string& note : sharded.engine.load(saved.path).notes)
          EXPECT_EQ(note.find("dropped"), std::string::npos) << note;
        // A group of one has no replicas beside what were masters.
        EXPECT_EQ(floats(sharded.params.view()),
                  now.world > 1 || config_of == lean
                      ? saved.params
                      : rounded(saved.masters, dtype));
        EXPECT_EQ(masters_of(sharded), saved.masters);
        const Owed owed = owed_by(comm, sharded);
        EXPECT_TRUE(expect_same(owed.workers, saved.owed.workers));
        EXPECT_EQ(expect_same(owed.servers, saved.owed.servers),
                  config_of == lean);
        for (std::int64_t t = 5; t <= 7; ++t)
          EXPECT_TRUE(sharded.step({t}).applied);
      });
    }
}

// ZeRO's residuals are of gradients, so a momentum's residuals begin at 0.
TEST_P(FewBitsElastic, ZeroBecomesOneBitAdamWithoutResiduals) {
  const Folder root;
  const Saved saved = save(
      GetParam().saved, zero(GetParam().saved, DType::kFloat32), root.path());
  const Ranks now = GetParam().now;
  comm::run_local_ranks(now.world, [&](comm::Communicator& comm) {
    Config config{.optimizer = optim::OnebitAdamOptions{.learning_rate = 0.01,
                                                        .freeze = {.step = 6}}};
    config.comm.ranks_per_host = now.of_host;
    Sharded sharded(comm, config);
    sharded.engine.load(saved.path);
    EXPECT_EQ(floats(sharded.params.view()),
              rounded(saved.masters, DType::kFloat32));
    const Owed owed = owed_by(comm, sharded);
    const std::vector<double> nothing(owed.workers.size());
    EXPECT_EQ(owed.workers, nothing);
    EXPECT_EQ(owed.servers, nothing);
    for (std::int64_t t = 5; t <= 8; ++t)
      EXPECT_TRUE(sharded.step({t}).applied);
  });
}

// Replicas are behind the masters by what the last exchanges have left over.
TEST_P(FewBitsElastic, WithoutLowBitsMastersAreLoadedAndResidualsAreNamed) {
  const Ranks now = GetParam().now;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const int stage : {0, 2})
      for (const bool weights_only : {false, true}) {
        const Folder root;
        const Saved saved =
            save(GetParam().saved, zero(GetParam().saved, dtype), root.path());
        const std::vector<float> masters = rounded(saved.masters, dtype);
        EXPECT_NE(masters, saved.params);
        comm::run_local_ranks(now.world, [&](comm::Communicator& comm) {
          Config config = zero(now, dtype);
          config.zero.wire = {};
          config.zero.stage = stage;
          Sharded sharded(comm, config);
          checkpoint::LoadOptions options;
          if (weights_only) options.what = checkpoint::What::kWeights;
          const auto loaded = sharded.engine.load(saved.path, options);
          EXPECT_EQ(floats(sharded.params.view()), masters);
          EXPECT_EQ(masters_of(sharded), saved.masters);
          EXPECT_EQ(count_notes(loaded, "gradients' residuals"),
                    weights_only ? 0 : 1);
          EXPECT_TRUE(sharded.step({5}).applied);
        });
      }
}

}  // namespace
}  // namespace thinwire::engine::test::engine_few_bits_elastic_test
