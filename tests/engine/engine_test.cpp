// SPDX-License-Identifier: Apache-2.0
// What an Engine computes is what its optimizer computes, bit for bit, however
// gradients come and leave.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/by_hand.h"
#include "support/ranks.h"
#include "support/sanitizers.h"
#include "thinwire/engine/engine.h"
#include "thinwire/engine/make_optimizer.h"

namespace thinwire::engine::test::engine_test {
namespace {

constexpr std::int64_t kSteps = 8;

// How the same training is done in different ways.
struct Way {
  Order order = Order::kReverse;
  std::size_t bucket_elements = std::size_t{1} << 20;
  int num_threads = 1;
};

// One step of one rank, as far as it must not depend on the way.
struct Done {
  std::vector<float> params;
  std::vector<float> masters;
  optim::StepReport report;
  double loss_scale = 1;
};

Config config_of(const OptimizerCase& optimizer, DType dtype) {
  Config config{.optimizer = optimizer.options, .gradient_clipping = 20};
  config.precision.dtype = dtype;
  // Grows every second step; falls when a step is skipped.
  config.precision.loss_scale = {
      .initial_scale = 1024, .window = 2, .hysteresis = 1};
  return config;
}

// Rank 0 in an exact step, the last rank in a compressed or local one.
bool overflows(std::int64_t step, const comm::Communicator& comm) {
  return (step == 2 && comm.rank() == 0) ||
         (step == 6 && comm.rank() == comm.size() - 1);
}

std::vector<Done> train_by_hand(comm::Communicator& comm,
                                const Config& config) {
  ByHand hand(comm, config, {.max_grad_norm = 20, .num_threads = 1});
  std::vector<Done> steps;
  for (std::int64_t t = 1; t <= kSteps; ++t) {
    const auto report = hand.step(t, 1, 1, overflows(t, comm));
    const ConstView masters =
        hand.mixed == nullptr ? hand.params.view() : hand.mixed->masters();
    steps.push_back({floats(hand.params.view()), floats(masters), report,
                     hand.loss_scale()});
  }
  return steps;
}

void expect_same(const Done& got, const Done& want) {
  EXPECT_EQ(got.params, want.params);
  EXPECT_EQ(got.masters, want.masters);
  EXPECT_EQ(got.loss_scale, want.loss_scale);
  EXPECT_EQ(got.report.applied, want.report.applied);
  EXPECT_EQ(got.report.phase, want.report.phase);
  EXPECT_EQ(got.report.loss_scale, want.report.loss_scale);
  EXPECT_EQ(got.report.nonfinite_rank, want.report.nonfinite_rank);
  if (!got.report.applied) return;
  EXPECT_EQ(got.report.grad_norm, want.report.grad_norm);
  EXPECT_EQ(got.report.clip_factor, want.report.clip_factor);
}

void expect_trained_the_same(comm::Communicator& comm, Config config,
                             const Way& way, const std::vector<Done>& want) {
  config.comm.bucket_elements = way.bucket_elements;
  config.comm.num_threads = way.num_threads;
  Sharded driven(comm, config);
  std::int64_t applied = 0;
  for (std::int64_t t = 1; t <= kSteps; ++t) {
    driven.backward({.step = t, .overflows = overflows(t, comm)}, way.order);
    const EngineReport report = driven.engine.step();
    const Done& expected = want[static_cast<std::size_t>(t - 1)];
    expect_same({floats(driven.params.view()), floats(driven.engine.masters()),
                 report, driven.engine.loss_scale()},
                expected);
    EXPECT_TRUE(report.at_boundary);
    if (report.applied) ++applied;
    EXPECT_EQ(report.steps, applied);
    EXPECT_TRUE(is_zero(driven.grads.view()));
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "step " << t << ", order " << static_cast<int>(way.order)
                    << ", buckets of " << way.bucket_elements << ", rank "
                    << comm.rank();
      return;
    }
  }
  EXPECT_EQ(driven.engine.optimizer().progress().steps, applied);
}

class EngineByHand
    : public ::testing::TestWithParam<std::tuple<int, DType, OptimizerCase>> {};

std::string name_of(
    const ::testing::TestParamInfo<EngineByHand::ParamType>& tested) {
  const auto& [world, dtype, optimizer] = tested.param;
  return fmt::format("{}_{}_w{}", optimizer.name, to_string(dtype), world);
}

INSTANTIATE_TEST_SUITE_P(
    All, EngineByHand,
    ::testing::Combine(
        ::testing::ValuesIn(fewer_if_sanitized<int>({3, 2, 1, 4}, 1)),
        ::testing::ValuesIn(kDTypes), ::testing::ValuesIn(optimizer_cases())),
    name_of);
INSTANTIATE_TEST_SUITE_P(
    Eight, EngineByHand,
    ::testing::Combine(::testing::Values(8), ::testing::Values(DType::kFloat16),
                       ::testing::Values(optimizer_cases()[2])),
    name_of);

TEST_P(EngineByHand, HasTheSameBits) {
  const auto& [world, dtype, optimizer] = GetParam();
  const Config config = config_of(optimizer, dtype);
  const std::vector<Way> ways = {{Order::kReverse, std::size_t{1} << 20, 1},
                                 {Order::kForward, 5000, 2},
                                 {Order::kShuffled, 16384, 1},
                                 {Order::kPerRank, 16384, 2},
                                 {Order::kPartly, 20000, 1},
                                 {Order::kSilent, 16384, 2}};
  comm::run_local_ranks(
      world,
      [&](comm::Communicator& comm) {
        const auto want = train_by_hand(comm, config);
        for (const Way& way : ways)
          expect_trained_the_same(comm, config, way, want);
      },
      kPatient);
}

// The cases above are worth something only if they are what they claim to be.
TEST(EngineByHandCases, GoThroughAllPhasesAndSkipSteps) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    std::map<std::string, std::set<optim::Phase>> phases;
    for (const OptimizerCase& optimizer : optimizer_cases()) {
      const auto steps =
          train_by_hand(comm, config_of(optimizer, DType::kFloat16));
      int clipped = 0;
      for (const Done& done : steps) {
        phases[optimizer.name].insert(done.report.phase);
        if (done.report.applied && done.report.clip_factor < 1) ++clipped;
      }
      EXPECT_FALSE(steps[1].report.applied);
      EXPECT_FALSE(steps[5].report.applied);
      EXPECT_LT(steps[1].loss_scale, 1024);
      EXPECT_GT(clipped, 0) << optimizer.name;
    }
    using enum optim::Phase;
    EXPECT_EQ(phases["adam"], std::set{kExact});
    EXPECT_EQ(phases["onebit_adam"], (std::set{kExact, kCompressed}));
    EXPECT_EQ(phases["onebit_lamb"], (std::set{kExact, kCompressed}));
    EXPECT_EQ(phases["zero_one_adam"], (std::set{kExact, kCompressed, kLocal}));
  });
}

TEST(Engine, TakesRankZerosParametersAndNobodysGradients) {
  for (const DType dtype : kDTypes)
    for (const bool from_floats : {true, false})
      comm::run_local_ranks(3, [&](comm::Communicator& comm) {
        const Config config = config_of(optimizer_cases()[0], dtype);
        const Sharded driven(comm, config, {.from_floats = from_floats});
        const auto start = initial_params(driven.params.size(), /*rank=*/0);
        Buffer rounded(start.size(), dtype);
        kernels::convert(start, rounded.view());
        EXPECT_EQ(floats(driven.params.view()), floats(rounded.view()));
        EXPECT_EQ(floats(driven.engine.masters()),
                  from_floats ? start : floats(rounded.view()));
        EXPECT_TRUE(is_zero(driven.grads.view()));
      });
}

// ---- optimizers that are not driven by hand: what make_optimizer() makes

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
  for (const DType dtype : kDTypes) {
    Config under = test::config_of("onebit_adam", dtype);
    under.gradient_clipping = 20;
    under.comm.compressed_under_next_step = true;
    under.comm.bucket_elements = 5000;
    all.push_back({fmt::format("under_{}", to_string(dtype)), under});
  }
  return all;
}

// The optimizer of a configuration, handed whole gradients: nothing is sent
// early.
class WithoutEngine {
 public:
  WithoutEngine(comm::Communicator& c, const Config& config)
      : comm(c), params(layout.size(), config.precision.dtype) {
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
    ASSERT_GE(report.bytes_sent, expected.bytes_sent) << t;
  }
  for (const Parameter& p : hand.layout.parameters())
    EXPECT_EQ(sharded.engine.whole_values().parameter(p.name),
              hand.parameter(p))
        << p.name;
}

class EngineOptimizers : public ::testing::TestWithParam<NamedConfig> {};

TEST_P(EngineOptimizers, HaveTheSameBitsWithoutTheEngine) {
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
}  // namespace thinwire::engine::test::engine_test
