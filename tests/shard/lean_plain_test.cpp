// SPDX-License-Identifier: Apache-2.0
// Lean 1-bit Adam: before its freeze against ZeRO-1, after it against plain
// loops, bit for bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "optim/low_bit/heavy_cases.h"
#include "shard/lean_naive.h"
#include "shard/lean_support.h"

namespace thinwire::shard {
namespace {

using test::LeanRun;
using Options = LeanOnebitAdamOptions;
using test::naive::Floats;

constexpr std::int64_t kSteps = 10;

struct Variant {
  const char* name;
  DType dtype;
  Options options;
};

Options with_groups() {
  return test::with_second_group(
      Options{.learning_rate = 0.02, .weight_decay = 0.01});
}

std::vector<Variant> variants() {
  const auto with = [](auto change) {
    Options o{.learning_rate = 0.02};
    change(o);
    return o;
  };
  Options masks = with_groups();
  for (std::size_t g = 0; g < 2; ++g)
    masks.groups[g].exp_avg_mask =
        test::every_third_masked(test::late_layout(), g);
  constexpr DType kF32 = DType::kFloat32;
  constexpr DType kB16 = DType::kBFloat16;
  return {
      {"plain", kF32, with([](auto&) {})},
      {"bf16", kB16, with([](auto&) {})},
      {"four_bits", kF32, with([](auto& o) { o.denominator_bits = 4; })},
      {"bf16_four_bits", kB16, with([](auto& o) {
         o.denominator_bits = 4;
         o.weight_decay = 0.1;
       })},
      {"fp32_residuals", kB16,
       with([](auto& o) { o.residual_dtype = DType::kFloat32; })},
      {"decay", kB16, with([](auto& o) { o.weight_decay = 0.1; })},
      {"groups", kF32, with_groups()},
      {"masks", kB16, masks},
      {"clipped", kF32, with([](auto& o) { o.exchange.max_grad_norm = 0.5; })},
      {"lagged", kF32, with([](auto& o) {
         o.exchange.max_grad_norm = 0.5;
         o.exchange.lagged_clipping = true;
       })},
      {"no_correction", kF32, with([](auto& o) { o.bias_correction = false; })},
      {"eps_inside", kF32, with([](auto& o) {
         o.epsilon_inside_sqrt = true;
         o.epsilon = 1e-3;
       })},
      {"no_floor", kF32, with([](auto& o) { o.denom_floor = 0; })},
      {"high_floor", kF32, with([](auto& o) { o.denom_floor = 1.5; })},
      {"l1", kF32, with([](auto& o) { o.scale = compress::Scale::kL1; })},
      {"verified", kB16, with([](auto& o) { o.exchange.verify_every = 1; })},
      {"small_buckets", kB16,
       with([](auto& o) { o.exchange.bucket_elements = 1; })},
      {"threads", kB16, with([](auto& o) { o.exchange.num_threads = 3; })}};
}

struct Gradients {
  const char* name;
  std::vector<float> (*of)(const ParameterLayout&, std::int64_t, int);
};

std::vector<float> all_there(const ParameterLayout& layout, std::int64_t t,
                             int rank) {
  return test::gradient(layout.size(), t, rank);
}

// The freeze finds no gradient at all.
std::vector<float> all_late(const ParameterLayout& layout, std::int64_t t,
                            int rank) {
  if (t <= test::kLateFreeze) return std::vector<float>(layout.size());
  return test::late_gradient(layout, t, rank);
}

const std::vector<Gradients> kGradients = {{"all_there", all_there},
                                           {"late", test::late_gradient},
                                           {"all_late", all_late},
                                           {"heavy", test::heavy_gradient},
                                           {"spiked", test::spiked_gradient}};

// What one rank saw of a step.
struct Seen {
  optim::StepReport report;
  Floats full, params;
};

struct Run {
  std::vector<std::vector<Seen>> steps;  // by step and rank
  test::naive::Lean::Begin begin{
      0, {}, {}, {}, test::naive::Gradients(test::naive::Setup())};
};

Run run(int world, const ParameterLayout& layout, const Variant& variant,
        const Gradients& gradients) {
  const auto ranks = static_cast<std::size_t>(world);
  Run result;
  result.steps.assign(kSteps, std::vector<Seen>(ranks));
  test::run_ranks("local", world, [&](comm::Communicator& comm) {
    LeanRun own(comm, layout, variant.dtype, variant.options);
    auto twin = test::exact_twin(comm, layout, variant.dtype, variant.options);
    for (std::int64_t t = 1; t <= kSteps; ++t) {
      const auto grads = gradients.of(layout, t, comm.rank());
      Seen& seen = result.steps[static_cast<std::size_t>(t - 1)]
                               [static_cast<std::size_t>(comm.rank())];
      seen.report = own.step(grads);
      seen.full = own.full();
      seen.params = own.values();
      EXPECT_EQ(own.optimizer->steps(), t);
      EXPECT_EQ(own.optimizer->frozen_at(),
                t < test::kLateFreeze ? 0 : test::kLateFreeze);
      if (t > test::kLateFreeze) continue;
      auto copy = grads;
      const auto report = twin.optimizer->step(twin.params.view(), copy);
      EXPECT_EQ(seen.report.grad_norm, report.grad_norm);
      EXPECT_EQ(seen.report.clip_factor, report.clip_factor);
      EXPECT_EQ(seen.report.phase, optim::Phase::kExact);
      EXPECT_TRUE(test::same_bits<float>(seen.full, twin.masters()));
      const auto values = twin.values();
      if (t < test::kLateFreeze) {
        EXPECT_TRUE(test::same_bits<float>(seen.params, values));
      }
      if (t < test::kLateFreeze) continue;
      const auto masters = twin.masters();
      const auto m = twin.state("exp_avg");
      const auto v = twin.state("exp_avg_sq");
      if (comm.rank() != 0) continue;
      result.begin.t = t;
      result.begin.params = masters;
      result.begin.m = m;
      result.begin.v = v;
    }
  });
  return result;
}

// Rounded half away from zero, as the upper half of a split is.
Floats upper_halves(const Floats& values, DType dtype) {
  Floats upper;
  for (const float value : values) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    upper.push_back(dtype == DType::kFloat32
                        ? value
                        : std::bit_cast<float>((bits + 0x8000u) & 0xffff0000u));
  }
  return upper;
}

void expect_plain_loops(int world, const Gradients& gradients,
                        const Variant& variant) {
  const ParameterLayout layout = test::late_layout();
  Variant own = variant;
  own.options.freeze_step = test::kLateFreeze;
  Run got = run(world, layout, own, gradients);
  const auto of_ranks = [&](std::int64_t t) {
    std::vector<Floats> grads;
    for (int r = 0; r < world; ++r) grads.push_back(gradients.of(layout, t, r));
    return grads;
  };
  got.begin.gradients =
      test::naive::Gradients(test::naive::setup_of(world, layout, own.options));
  for (std::int64_t t = 1; t <= test::kLateFreeze; ++t)
    (void)got.begin.gradients.exact(of_ranks(t));
  test::naive::Lean naive(world, layout, own.options, std::move(got.begin));
  for (std::int64_t t = test::kLateFreeze; t <= kSteps; ++t) {
    const bool is_compressed = t > test::kLateFreeze;
    if (is_compressed) {
      ASSERT_TRUE(naive.step(of_ranks(t)));
    }
    for (const Seen& seen : got.steps[static_cast<std::size_t>(t - 1)]) {
      ASSERT_TRUE(seen.report.applied);
      ASSERT_TRUE(test::same_bits<float>(seen.full, naive.params))
          << "step " << t;
      ASSERT_TRUE(test::same_bits<float>(seen.params,
                                         upper_halves(naive.params, own.dtype)))
          << "step " << t;
      if (!is_compressed) continue;
      ASSERT_EQ(seen.report.phase, optim::Phase::kCompressed);
      ASSERT_EQ(seen.report.masked, naive.masked) << "step " << t;
      ASSERT_EQ(seen.report.heavy, naive.heavy) << "step " << t;
      ASSERT_EQ(seen.report.revived, naive.revived) << "step " << t;
    }
  }
}

class LeanPlainLoops
    : public ::testing::TestWithParam<std::tuple<int, Gradients, Variant>> {};
INSTANTIATE_TEST_SUITE_P(All, LeanPlainLoops,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::ValuesIn(kGradients),
                                            ::testing::ValuesIn(variants())),
                         [](const auto& tested) {
                           return fmt::format("{}_{}_w{}",
                                              std::get<2>(tested.param).name,
                                              std::get<1>(tested.param).name,
                                              std::get<0>(tested.param));
                         });
INSTANTIATE_TEST_SUITE_P(
    More, LeanPlainLoops,
    ::testing::Combine(::testing::Values(4, 8),
                       ::testing::Values(kGradients[1], kGradients[3]),
                       ::testing::Values(variants()[0], variants()[1],
                                         variants()[3])),
    [](const auto& tested) {
      return fmt::format("{}_{}_w{}", std::get<2>(tested.param).name,
                         std::get<1>(tested.param).name,
                         std::get<0>(tested.param));
    });

TEST_P(LeanPlainLoops, AreEqual) {
  const auto& [world, gradients, variant] = GetParam();
  expect_plain_loops(world, gradients, variant);
}

}  // namespace
}  // namespace thinwire::shard
