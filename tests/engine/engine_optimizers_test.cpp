// SPDX-License-Identifier: Apache-2.0
// Optimizers that engine_test.cpp does not drive by hand: an Engine has the
// bits of what make_optimizer() makes of the same configuration.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "engine/by_hand.h"
#include "support/ranks.h"
#include "thinwire/engine/make_optimizer.h"

namespace thinwire::engine::test::engine_optimizers_test {
namespace {

constexpr std::int64_t kSteps = 7;

std::vector<NamedConfig> cases() {
  std::vector<NamedConfig> all = few_bits_cases();
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    Config narrow = test::config_of("adam", dtype);
    narrow.gradient_clipping = 20;
    narrow.precision.master_dtype = narrow.precision.state_dtype = dtype;
    all.push_back({fmt::format("adam_masters_{}", to_string(dtype)), narrow});
    for (const int stage : {1, 2}) {
      Config reference = test::zero_config(stage, dtype);
      reference.semantics = config::Semantics::kDeepSpeed;
      reference.gradient_clipping = 20;
      reference.zero.reduce_scatter = stage == 1;
      reference.zero.round_robin_gradients = true;
      all.push_back(
          {fmt::format("deepspeed_zero{}_{}", stage, to_string(dtype)),
           reference});
    }
  }
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Config early = test::config_of("onebit_adam", dtype);
    early.gradient_clipping = 20;
    early.lagged_clipping = early.comm.compressed_during_backward = true;
    early.comm.bucket_elements = 5000;
    all.push_back({fmt::format("early_{}", to_string(dtype)), early});
  }
  return all;
}

bool overflows(std::int64_t step, const comm::Communicator& comm) {
  return (step == 2 && comm.rank() == 0) ||
         (step == 6 && comm.rank() == comm.size() - 1);
}

// The optimizer of a configuration, handed whole gradients: nothing is sent
// early.
class WithoutEngine {
 public:
  WithoutEngine(comm::Communicator& c, Config config)
      : comm(c), params(layout.size(), config.precision.dtype) {
    config.comm.compressed_during_backward = false;
    const auto start = initial_params(layout.size(), 0);
    kernels::convert(start, params.view());
    made = make_optimizer(comm, layout, config, params.view(), start);
    for (const Parameter& p : layout.parameters()) {
      const auto values = std::span(start).subspan(p.offset, p.size);
      if (made.lean != nullptr)
        made.lean->set_full_parameter(p.name, values);
      else if (made.zero != nullptr)
        made.zero->whole_values().set_parameter(p.name, values);
    }
  }

  optim::StepReport step(std::int64_t number) {
    const double scale = made.zero != nullptr    ? made.zero->loss_scale()
                         : made.mixed != nullptr ? made.mixed->loss_scale()
                                                 : 1;
    Buffer grads = test::gradient(layout, comm.rank(),
                                  {number, 0, overflows(number, comm)}, scale,
                                  params.dtype());
    return made.optimizer->step(params.view(), grads.view());
  }
  [[nodiscard]] std::vector<float> parameter(const Parameter& p) const {
    if (made.lean != nullptr) return made.lean->full_parameter(p.name);
    if (made.zero != nullptr)
      return made.zero->whole_values().parameter(p.name);
    const ConstView from =
        has_masters() ? made.mixed->masters() : params.view();
    return floats(from.subview(p.offset, p.size));
  }
  [[nodiscard]] bool has_masters() const {
    return made.mixed != nullptr && !made.mixed->masters().empty();
  }

  const ParameterLayout layout = model_layout();
  comm::Communicator& comm;
  Buffer params;
  OptimizerStack made;
};

void expect_same_bits(comm::Communicator& comm, const Config& config) {
  WithoutEngine hand(comm, config);
  Sharded sharded(comm, config);
  EXPECT_EQ(sharded.engine.masters().data() == sharded.params.data(),
            !hand.has_masters());
  for (std::int64_t t = 1; t <= kSteps; ++t) {
    const optim::StepReport expected = hand.step(t);
    const EngineReport report = sharded.step({t, 0, overflows(t, comm)});
    ASSERT_EQ(report.applied, expected.applied) << t;
    ASSERT_EQ(report.phase, expected.phase) << t;
    ASSERT_EQ(report.residuals_cleared, expected.residuals_cleared) << t;
    ASSERT_EQ(floats(sharded.params.view()), floats(hand.params.view()))
        << "step " << t;
    if (!config.comm.compressed_during_backward) {
      ASSERT_GE(report.bytes_sent, expected.bytes_sent) << t;
    }
  }
  for (const Parameter& p : hand.layout.parameters())
    EXPECT_EQ(sharded.engine.whole_values().parameter(p.name),
              hand.parameter(p))
        << p.name;
}

class EngineOptimizers : public ::testing::TestWithParam<NamedConfig> {};

TEST_P(EngineOptimizers, HaveTheBitsOfTheirOwn) {
  Config config = GetParam().config;
  for (const bool overlap : {true, false}) {
    config.comm.overlap = overlap;
    for (const int world : {1, 2, 3})
      comm::run_local_ranks(world, [&](comm::Communicator& comm) {
        expect_same_bits(comm, config);
      });
  }
}

INSTANTIATE_TEST_SUITE_P(Each, EngineOptimizers, ::testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace thinwire::engine::test::engine_optimizers_test
