// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/onebit_lamb.h"

#include <gtest/gtest.h>

#include <limits>

#include "optim/naive/drive.h"
#include "optim/naive/lamb.h"

namespace thinwire::optim::onebit_lamb_test {
namespace {

using test::Drive;

constexpr std::int64_t kFreeze = 3;

class OnebitLambWorlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, OnebitLambWorlds,
                         ::testing::Values(1, 2, 3, 4, 8));

TEST_P(OnebitLambWorlds, EqualsPlainLoops) {
  const OnebitLambOptions options{.learning_rate = 0.01,
                                  .freeze = {.step = kFreeze}};
  test::expect_plain_loops<test::naive::OnebitLamb>(
      {GetParam()}, test::awkward_layout(),
      {.steps = 7, .gradient = test::gradient_with_gaps}, options,
      test::onebit_lamb);
}

struct Variant {
  const char* name;
  OnebitLambOptions options;
  Drive run{.steps = 10, .gradient = test::gradient_with_gaps};
};

OnebitLambOptions with_groups() {
  return test::with_second_group(
      OnebitLambOptions{.learning_rate = 0.02, .weight_decay = 0.01});
}

OnebitLambOptions with_limits_of_groups() {
  return test::naive::with_limits_of_groups(with_groups());
}

OnebitLambOptions with_masks() {
  return test::with_masks(with_groups(), test::grouped_layout());
}

// The size of gradients falls by half every step, which the frozen variance
// does not see: the factor moves.
std::vector<float> shrinking(const ParameterLayout& layout, std::int64_t t,
                             int rank) {
  auto values = test::gradient_with_gaps(layout, t, rank);
  for (float& value : values) value *= std::pow(0.5f, static_cast<float>(t));
  return values;
}

std::vector<float> nothing_at_first(const ParameterLayout& layout,
                                    std::int64_t t, int rank) {
  if (t > 2) return test::gradient_with_gaps(layout, t, rank);
  return std::vector<float>(layout.size());
}

double rate_with_zeros(std::int64_t t, std::size_t group) {
  return t % 3 == 0 || (t % 3 == 1 && group == 1)
             ? 0
             : 0.01 * static_cast<double>(t);
}

double decay_that_changes(std::int64_t t, std::size_t group) {
  return t % 3 == 0 ? 0 : 0.02 * static_cast<double>(t + 5 * group);
}

std::vector<float> not_finite_at_times(const ParameterLayout& layout,
                                       std::int64_t t, int rank) {
  auto values = test::gradient_with_gaps(layout, t, rank);
  if (rank == 0 && (t == 2 || t == 6))
    values[3] = std::numeric_limits<float>::infinity();
  return values;
}

// Options that 1-bit Adam has, too, are in onebit_adam_test.cpp.
std::vector<Variant> variants() {
  const OnebitLambOptions plain{.learning_rate = 0.02};
  const auto with = [&](auto change) {
    OnebitLambOptions o = plain;
    change(o);
    return o;
  };
  const auto driven = [](auto gradient) {
    return Drive{.steps = 10, .gradient = gradient};
  };
  return {
      {"limits", with([](auto& o) {
         o.min_coeff = 1.2;
         o.max_coeff = 1.3;
         o.factor_min = 0.9;
         o.factor_max = 1.1;
         o.factor_threshold = 0.02;
         o.coeff_beta = 0.5;
       })},
      {"limits_of_groups", with_limits_of_groups()},
      {"shrinking", with([](auto& o) { o.beta2 = 0.9; }), driven(shrinking)},
      {"shrinking_masks", with_masks(), driven(shrinking)},
      {"nothing_at_first", plain, driven(nothing_at_first)},
      {"not_finite", plain, driven(not_finite_at_times)},
      {"rates",
       with_groups(),
       {.steps = 10,
        .gradient = test::gradient_with_gaps,
        .learning_rate = rate_with_zeros}},
      {"decay_changes",
       with_groups(),
       {.steps = 10,
        .gradient = test::gradient_with_gaps,
        .weight_decay = decay_that_changes}}};
}

class OnebitLambVariants
    : public ::testing::TestWithParam<std::tuple<int, Variant>> {};
INSTANTIATE_TEST_SUITE_P(All, OnebitLambVariants,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::ValuesIn(variants())),
                         test::kNameAndWorld);

TEST_P(OnebitLambVariants, EqualPlainLoops) {
  const auto& [world, variant] = GetParam();
  OnebitLambOptions options = variant.options;
  options.freeze.step = kFreeze;
  test::expect_plain_loops<test::naive::OnebitLamb>(
      {world}, test::grouped_layout(), variant.run, options, test::onebit_lamb);
}

}  // namespace
}  // namespace thinwire::optim::onebit_lamb_test
