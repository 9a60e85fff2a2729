// SPDX-License-Identifier: Apache-2.0
// ZeRO in few bits and lean 1-bit Adam under an Engine: the bits of the same
// optimizer driven by hand, and a run that goes on from a checkpoint.
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "engine/sharded.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/ranks.h"
#include "thinwire/engine/make_optimizer.h"

namespace thinwire::engine::engine_few_bits_test {

using config::Config;

namespace {

using test::floats;
using test::Sharded;

constexpr std::int64_t kSteps = 7;
constexpr std::int64_t kFreeze = 3;

struct Case {
  std::string name;
  Config config;
};

Config zero(int stage, int up, int down, DType dtype) {
  Config config = test::zero_config(stage, dtype);
  config.gradient_clipping = 20;
  config.zero.wire.bits_up = up;
  config.zero.wire.bits_down = down;
  return config;
}

Config lean(DType dtype, int bits) {
  Config config{
      .optimizer = lean::LeanOnebitAdamOptions{.learning_rate = 0.01,
                                               .freeze = {.step = kFreeze},
                                               .denominator_bits = bits},
      .gradient_clipping = 20};
  config.precision.dtype = dtype;
  config.comm.bucket_elements = 16384;
  return config;
}

std::vector<Case> cases() {
  return {{"zero1", zero(1, 4, 4, DType::kFloat32)},
          {"zero1_bf16", zero(1, 8, 4, DType::kBFloat16)},
          {"zero2", zero(2, 4, 8, DType::kFloat32)},
          {"zero2_fp16", zero(2, 4, 4, DType::kFloat16)},
          {"zero2_up", zero(2, 4, 0, DType::kBFloat16)},
          {"lean", lean(DType::kFloat32, 8)},
          {"lean_bf16", lean(DType::kBFloat16, 4)}};
}

bool overflows(std::int64_t step, const comm::Communicator& comm) {
  return step == 2 && comm.rank() == 0;
}

// The optimizer of a configuration, handed whole gradients.
class WithoutEngine {
 public:
  WithoutEngine(comm::Communicator& c, const Config& config)
      : comm(c), params(layout.size(), config.precision.dtype) {
    const auto start = test::initial_params(layout.size(), 0);
    kernels::convert(start, params.view());
    made = make_optimizer(comm, layout, config, params.view(), start);
    for (const Parameter& p : layout.parameters()) {
      const auto values = std::span(start).subspan(p.offset, p.size);
      if (made.lean != nullptr)
        made.lean->set_full_parameter(p.name, values);
      else
        made.zero->whole_values().set_parameter(p.name, values);
    }
  }

  optim::StepReport step(std::int64_t number) {
    const double scale = made.zero == nullptr ? 1 : made.zero->loss_scale();
    Buffer grads = test::gradient(layout, comm.rank(),
                                  {number, 0, overflows(number, comm)}, scale,
                                  params.dtype());
    return made.optimizer->step(params.view(), grads.view());
  }

  const ParameterLayout layout = test::model_layout();
  comm::Communicator& comm;
  Buffer params;
  OptimizerStack made;
};

EngineReport step(Sharded& sharded, std::int64_t number) {
  sharded.backward({number, 0, overflows(number, sharded.comm)});
  return sharded.engine.step();
}

class EngineFewBits : public ::testing::TestWithParam<Case> {};

void expect_same_bits(comm::Communicator& comm, const Config& config) {
  WithoutEngine hand(comm, config);
  Sharded sharded(comm, config);
  for (std::int64_t t = 1; t <= kSteps; ++t) {
    const optim::StepReport expected = hand.step(t);
    const EngineReport report = step(sharded, t);
    ASSERT_EQ(report.applied, expected.applied) << t;
    ASSERT_EQ(report.phase, expected.phase) << t;
    ASSERT_EQ(report.residuals_cleared, expected.residuals_cleared) << t;
    ASSERT_EQ(floats(sharded.params.view()), floats(hand.params.view()))
        << "step " << t;
    ASSERT_GE(report.bytes_sent, expected.bytes_sent) << t;
  }
  for (const Parameter& p : hand.layout.parameters()) {
    const auto expected =
        hand.made.lean != nullptr
            ? hand.made.lean->full_parameter(p.name)
            : hand.made.zero->whole_values().parameter(p.name);
    EXPECT_EQ(sharded.engine.whole_values().parameter(p.name), expected)
        << p.name;
  }
}

TEST_P(EngineFewBits, HasTheBitsOfItsOptimizer) {
  Config config = GetParam().config;
  for (const bool overlap : {true, false}) {
    config.comm.overlap = overlap;
    for (const int world : {1, 2, 3})
      comm::run_local_ranks(world, [&](comm::Communicator& comm) {
        expect_same_bits(comm, config);
      });
  }
}

TEST_P(EngineFewBits, GoesOnFromACheckpoint) {
  const thinwire::test::Folder root;
  for (const std::int64_t saved_at : {std::int64_t{2}, kFreeze + 2})
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Sharded whole(comm, GetParam().config);
      for (std::int64_t t = 1; t <= saved_at; ++t) step(whole, t);
      const std::string directory =
          whole.engine.save(root.path() + "/" + std::to_string(saved_at)).path;
      Sharded resumed(comm, GetParam().config);
      resumed.engine.load(directory);
      EXPECT_EQ(floats(resumed.params.view()), floats(whole.params.view()));
      for (std::int64_t t = saved_at + 1; t <= kSteps; ++t) {
        step(whole, t);
        step(resumed, t);
        ASSERT_EQ(floats(resumed.params.view()), floats(whole.params.view()))
            << "saved at " << saved_at << ", step " << t;
      }
    });
}

INSTANTIATE_TEST_SUITE_P(Each, EngineFewBits, ::testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace thinwire::engine::engine_few_bits_test
