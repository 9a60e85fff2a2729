// SPDX-License-Identifier: Apache-2.0
// Runs with DeepSpeed's semantics: load_state_dict() forgets what the reference
// forgets, and checkpoints fit only where their arrays do.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/by_hand.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/same_bits.h"
#include "thinwire/comm/local.h"

namespace thinwire::engine::test::deepspeed_checkpoint_test {
namespace {

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

// Only load_state_dict() forgets what the reference forgets.
TEST(DeepSpeedState, ForgetsInLoadStateDictOnly) {
  for (const std::string optimizer :
       {"onebit_adam", "onebit_lamb", "zero_one_adam"}) {
    const Folder folder;
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      const Config config = config_of(optimizer);
      Trained main(comm, config);
      for (std::int64_t t = 1; t <= 8; ++t) main.step({t});
      main.engine.save(folder.in("run"), {}, kQuick);
      Trained kept(comm, config);
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

TEST(DeepSpeedCheckpoints, GoOnWithBucketsOfAnySize) {
  const Folder folder;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Config config = config_of("onebit_adam");
    Trained main(comm, config);
    for (std::int64_t t = 1; t <= 5; ++t) main.step({t});
    main.engine.save(folder.in("run"), {}, kQuick);
    config.comm.bucket_elements = 5000;
    Trained other(comm, config);
    other.engine.load(folder.in("run"));
    for (std::int64_t t = 6; t <= 8; ++t)
      for (Trained* const run : {&main, &other}) run->step({t});
    EXPECT_TRUE(same_bytes(other.params.view(), main.params.view()));
  });
}

}  // namespace
}  // namespace thinwire::engine::test::deepspeed_checkpoint_test
