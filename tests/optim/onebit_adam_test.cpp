// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/onebit_adam.h"

#include <gtest/gtest.h>

#include "optim/low_bit/late_cases.h"
#include "optim/naive/drive.h"
#include "optim/naive/lamb.h"
#include "optim/naive/onebit_adam.h"
#include "optim/support.h"
#include "support/errors.h"

namespace thinwire::optim::onebit_adam_test {
namespace {

class OnebitAdamWorlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, OnebitAdamWorlds,
                         ::testing::Values(1, 2, 3, 4, 8));

TEST_P(OnebitAdamWorlds, IsExactAdamUpToTheFreeze) {
  const ParameterLayout layout = test::small_layout();
  const ExchangeOptions clipped{.max_grad_norm = 1};
  EXPECT_EQ(
      test::train(GetParam(), layout,
                  test::onebit_adam({.learning_rate = 0.01,
                                     .freeze = {.step = 5},
                                     .compression = {.exchange = clipped}}),
                  5),
      test::train(GetParam(), layout,
                  test::exact_adam({.learning_rate = 0.01}, clipped), 5));
}

TEST(OnebitAdam, ReportsTheResidual) {
  const ParameterLayout layout = test::small_layout();
  double before = -1;
  double after = -1;
  test::train(2, layout, test::onebit_adam({.freeze = {.step = 1}}), 2,
              [&](Optimizer& optimizer, const StepReport& report) {
                const auto& onebit = dynamic_cast<OnebitAdam&>(optimizer);
                (report.phase == Phase::kExact ? before : after) =
                    onebit.residual_ratio();
              });
  EXPECT_EQ(before, 0);
  // Signs keep 2/pi of a normal value's energy: the rest is about 0.6 of it.
  EXPECT_GT(after, 0.2);
  EXPECT_LT(after, 2);
}

TEST(OnebitAdam, LearningRatesMayChangeAtAnyTime) {
  const ParameterLayout layout = test::small_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    OnebitAdam optimizer(comm, layout, {.freeze = {.step = 2}});
    std::vector<float> params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 4; ++t) {
      const std::vector<float> before = params;
      optimizer.groups().set_learning_rate(t % 2 == 0 ? 0.0 : 0.01);
      test::step_of(optimizer, params, t, comm.rank());
      EXPECT_EQ(params == before, t % 2 == 0) << t;
    }
    test::expect_invalid({"learning_rate", "-1"},
                         [&] { optimizer.groups().set_learning_rate(-1.0); });
    test::expect_invalid({"group"},
                         [&] { optimizer.groups().set_learning_rate(1, 0.1); });
  });
}

TEST(OnebitAdam, MayHaveNothingToCompress) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const ParameterLayout layout = test::small_layout();
    OnebitAdamOptions options{.freeze = {.step = 1}};
    options.groups.resize(layout.num_groups());
    for (OnebitAdamGroup& group : options.groups) group.non_freeze = true;
    OnebitAdam optimizer(comm, layout, options);
    std::vector<float> params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 3; ++t)
      EXPECT_TRUE(test::step_of(optimizer, params, t, comm.rank()).applied);
    EXPECT_NO_THROW(optimizer.load_state_dict(copy_of(optimizer.state())));
  });
}

TEST(OnebitAdam, NonFreezeGroupsContinueAsExactAdam) {
  const auto layout = ParameterLayout::of(
      {{"frozen", {700}, 0}, {"exact", {300}, 1}, {"more", {9}, 1}});
  OnebitAdamOptions options{.learning_rate = 0.01, .freeze = {.step = 2}};
  options.groups.resize(2);
  options.groups[1].non_freeze = true;
  for (const int world : {1, 3}) {
    const auto got = test::train(world, layout, test::onebit_adam(options), 8);
    const auto adam = test::train(
        world, layout,
        test::exact_adam({.learning_rate = 0.01, .groups = {{}, {}}}), 8);
    for (std::size_t r = 0; r < got.size(); ++r)
      for (std::size_t i = 700; i < layout.size(); ++i)
        ASSERT_EQ(got[r][i], adam[r][i]) << i;
  }
}

// ---- and what 1-bit LAMB shares with it after the freeze, against plain loops

using test::named_gradients;
using test::NamedGradients;

struct Variant {
  const char* name;
  OnebitAdamOptions options;
};

OnebitAdamOptions with_groups() {
  return test::with_second_group(
      OnebitAdamOptions{.learning_rate = 0.02, .weight_decay = 0.01});
}

std::vector<Variant> variants() {
  const auto with = [](auto change) {
    OnebitAdamOptions o{.learning_rate = 0.02};
    change(o);
    return o;
  };
  const OnebitAdamOptions masks =
      test::with_masks(with_groups(), test::late_layout());
  OnebitAdamOptions few_bits = masks;
  few_bits.freeze.warmup_bits = 4;
  few_bits.compression.exchange.max_grad_norm = 0.5;
  few_bits.compression.exchange.bucket_elements = 900;
  few_bits.compression.exchange.num_threads = 3;
  OnebitAdamOptions few_bits_bf16 = few_bits;
  few_bits_bf16.freeze.warmup_bits = 8;
  few_bits_bf16.compression.residual_dtype = DType::kBFloat16;
  return {
      {"eight_bits", with([](auto& o) { o.freeze.warmup_bits = 8; })},
      {"four_bits", with([](auto& o) { o.freeze.warmup_bits = 4; })},
      {"four_bits_masks", few_bits},
      {"eight_bits_bf16", few_bits_bf16},
      {"plain", with([](auto&) {})},
      {"decay", with([](auto& o) { o.weight_decay = 0.1; })},
      {"groups", with_groups()},
      {"masks", masks},
      {"clipped",
       with([](auto& o) { o.compression.exchange.max_grad_norm = 0.5; })},
      {"lagged", with([](auto& o) {
         o.compression.exchange.max_grad_norm = 0.5;
         o.compression.exchange.lagged_clipping = true;
       })},
      {"no_correction", with([](auto& o) { o.bias_correction = false; })},
      {"eps_inside", with([](auto& o) {
         o.epsilon_inside_sqrt = true;
         o.epsilon = 1e-3;
       })},
      {"no_floor", with([](auto& o) { o.compression.denom_floor = 0; })},
      {"high_floor", with([](auto& o) { o.compression.denom_floor = 1.5; })},
      {"short_memory", with([](auto& o) { o.beta2 = 0.5; })},
      {"bf16",
       with([](auto& o) { o.compression.residual_dtype = DType::kBFloat16; })},
      {"small_buckets",
       with([](auto& o) { o.compression.exchange.bucket_elements = 40; })},
      {"threads",
       with([](auto& o) { o.compression.exchange.num_threads = 3; })}};
}

// Late elements have a gradient in a step that is skipped: it wakes nobody.
std::vector<float> late_in_a_skipped_step(const ParameterLayout& layout,
                                          std::int64_t t, int rank) {
  if (t != test::kFirstLate - 1 || rank != 0)
    return test::late_gradient(layout, t, rank);
  auto values = test::gradient(layout.size(), t, rank);
  values.back() = std::numeric_limits<float>::infinity();
  return values;
}

using Case = std::tuple<int, NamedGradients, Variant>;

std::string name_of(const ::testing::TestParamInfo<Case>& tested) {
  const auto& [world, gradients, variant] = tested.param;
  return fmt::format("{}_{}_w{}", variant.name, gradients.name, world);
}

class PlainLoops : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    All, PlainLoops,
    ::testing::Combine(::testing::Values(1, 3),
                       ::testing::ValuesIn(named_gradients()),
                       ::testing::ValuesIn(variants())),
    name_of);
INSTANTIATE_TEST_SUITE_P(
    Skipped, PlainLoops,
    ::testing::Combine(::testing::Values(2, 3),
                       ::testing::Values(NamedGradients{
                           "late_in_a_skipped_step", late_in_a_skipped_step}),
                       ::testing::Values(variants()[4], variants()[15])),
    name_of);
INSTANTIATE_TEST_SUITE_P(
    Eight, PlainLoops,
    ::testing::Combine(
        ::testing::Values(8),
        ::testing::Values(named_gradients()[0], named_gradients()[1]),
        ::testing::Values(variants()[0], variants()[2], variants()[4])),
    name_of);

TEST_P(PlainLoops, EqualOnebitAdam) {
  const auto& [world, gradients, variant] = GetParam();
  OnebitAdamOptions options = variant.options;
  options.freeze.step = test::kLateFreeze;
  test::expect_plain_loops<test::naive::OnebitAdam>(
      {world}, test::late_layout(), {.steps = 10, .gradient = gradients.of},
      options, test::onebit_adam);
}

// Options that both have.
OnebitLambOptions lamb_options(const OnebitAdamOptions& from) {
  OnebitLambOptions o{.learning_rate = from.learning_rate,
                      .epsilon = from.epsilon,
                      .weight_decay = from.weight_decay,
                      .bias_correction = from.bias_correction,
                      .epsilon_inside_sqrt = from.epsilon_inside_sqrt,
                      .freeze = from.freeze,
                      .compression = from.compression};
  o.freeze.step = test::kLateFreeze;
  o.beta2 = from.beta2;
  for (const MaskedGroup& group : from.groups) o.groups.push_back({group});
  return o;
}

TEST_P(PlainLoops, EqualOnebitLamb) {
  const auto& [world, gradients, variant] = GetParam();
  test::expect_plain_loops<test::naive::OnebitLamb>(
      {world}, test::late_layout(), {.steps = 10, .gradient = gradients.of},
      lamb_options(variant.options), test::onebit_lamb);
}

}  // namespace
}  // namespace thinwire::optim::onebit_adam_test
