// SPDX-License-Identifier: Apache-2.0
// 1-bit Adam, and what 1-bit LAMB shares with it after the freeze, against
// plain loops.
#include <gtest/gtest.h>

#include "optim/low_bit/heavy_cases.h"
#include "optim/naive/drive.h"
#include "optim/naive/lamb.h"
#include "optim/naive/onebit_adam.h"

namespace thinwire::optim::onebit_adam_plain_test {
namespace {

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
    ::testing::Combine(::testing::Values(1, 2, 3, 4),
                       ::testing::ValuesIn(named_gradients()),
                       ::testing::ValuesIn(variants())),
    name_of);
INSTANTIATE_TEST_SUITE_P(
    Skipped, PlainLoops,
    ::testing::Combine(::testing::Values(1, 2, 3, 4),
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
}  // namespace thinwire::optim::onebit_adam_plain_test
