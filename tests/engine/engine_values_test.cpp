// SPDX-License-Identifier: Apache-2.0
// Values that a caller reads of an Engine and sets: masters, moments, the loss
// scale.
#include <gtest/gtest.h>

#include <vector>

#include "engine/by_hand.h"
#include "support/errors.h"
#include "thinwire/comm/local.h"

namespace thinwire::engine::engine_values_test {
namespace {

using config::Config;
using test::Sharded;
using test::zero_config;
using thinwire::test::expect_error;

TEST(EngineValues, FullParametersAreSetWhereverTheyAre) {
  for (const int stage : {0, 2})
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
      comm::run_local_ranks(2, [&](comm::Communicator& comm) {
        Sharded sharded(comm, zero_config(stage, dtype));
        const std::vector<float> values{1.0F + 0x1p-20F, 2, 3};
        const auto before = sharded.engine.whole_values().parameter("block");
        sharded.engine.whole_values().set_parameter("last", values);
        EXPECT_EQ(sharded.engine.whole_values().parameter("last"), values);
        EXPECT_EQ(sharded.engine.whole_values().parameter("block"), before);
        const std::size_t at = sharded.layout.parameter("last").offset;
        EXPECT_EQ(test::floats(sharded.params.view().subview(at, 3)),
                  (std::vector<float>{
                      dtype == DType::kFloat32 ? values[0] : 1.0F, 2, 3}));
      });
}

TEST(EngineValues, FullStatesAreTheSameWithZeroAndWithout) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    std::vector<std::vector<float>> found;
    for (const int stage : {0, 1, 2}) {
      Sharded sharded(comm, zero_config(stage));
      sharded.backward({1, 0, false});
      (void)sharded.engine.step();
      found.push_back(sharded.engine.whole_values().state("odd", "exp_avg"));
    }
    EXPECT_NE(found[0], std::vector<float>(33 * 17));
    EXPECT_EQ(found[1], found[0]);
    EXPECT_EQ(found[2], found[0]);
  });
}

TEST(EngineValues, TheLossScaleContinuesFromWhatIsSet) {
  for (const int stage : {0, 1})
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Sharded sharded(comm, zero_config(stage, DType::kFloat16));
      sharded.engine.set_loss_scale(64);
      EXPECT_EQ(sharded.engine.loss_scale(), 64);
      EXPECT_EQ(sharded.engine.loss_factor(), 64);
      sharded.backward({1, 0, true});
      EXPECT_EQ(sharded.engine.step().loss_scale, 64);
      EXPECT_EQ(sharded.engine.loss_scale(), 32);
      for (const double wrong : {0.0, -1.0, 1e30})
        expect_error(ErrorCode::kInvalidArgument, {"loss_scale", "in ["},
                     [&] { sharded.engine.set_loss_scale(wrong); });
      expect_error(ErrorCode::kInvalidArgument, {"loss_scale", "16", "17"},
                   [&] { sharded.engine.set_loss_scale(16 + comm.rank()); });
      EXPECT_EQ(sharded.engine.loss_scale(), 32);
      Sharded bf16(comm, zero_config(stage, DType::kBFloat16));
      expect_error(ErrorCode::kFailedPrecondition, {"set_loss_scale", "fp16"},
                   [&] { bf16.engine.set_loss_scale(2); });
    });
}

}  // namespace
}  // namespace thinwire::engine::engine_values_test
