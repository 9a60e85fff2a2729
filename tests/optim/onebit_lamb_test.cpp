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

void expect_naive(int world, const ParameterLayout& layout,
                  const OnebitLambOptions& options, const Drive& run) {
  test::expect_same_run({world}, layout, run,
                        test::naive::OnebitLamb(world, layout, options,
                                                test::normal(layout.size(), 3)),
                        test::onebit_lamb(options));
}

class OnebitLambWorlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, OnebitLambWorlds,
                         ::testing::Values(1, 2, 3, 4, 8));

TEST_P(OnebitLambWorlds, EqualsPlainLoops) {
  expect_naive(GetParam(), test::awkward_layout(),
               {.learning_rate = 0.01, .freeze = {.step = kFreeze}},
               {.steps = 7, .gradient = test::gradient_with_gaps});
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
  OnebitLambOptions o = with_groups();
  for (std::size_t g = 0; g < 2; ++g)
    o.groups[g].exp_avg_mask =
        test::every_third_masked(test::grouped_layout(), g);
  return o;
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

// Options that 1-bit Adam has, too, are in onebit_adam_plain_test.cpp.
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
  expect_naive(world, test::grouped_layout(), options, variant.run);
}

// Exact steps clamp with the group's limits; compressed ones adapt the average
// of what was clamped, and go beyond the limits.
TEST(OnebitLamb, ClampsWithTheLimitsOfTheGroup) {
  const auto layout = ParameterLayout::of({{"a", {40}, 0}, {"b", {7}, 1}});
  OnebitLambOptions options = with_limits_of_groups();
  options.beta2 = 0.9;
  options.coeff_beta = 0.5;
  options.freeze.step = 4;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    OnebitLamb optimizer(comm, layout, options);
    std::vector<float> params = test::normal(layout.size(), 3);
    std::vector<double> average(2);
    bool left_the_limits = false;
    for (std::int64_t t = 1; t <= 12; ++t) {
      auto grads = shrinking(layout, t, comm.rank());
      if (optimizer.step(params, grads).phase != Phase::kExact) {
        for (std::size_t i = 0; i < 2; ++i)
          left_the_limits |=
              optimizer.progress().lamb_coeffs[i] > (i == 0 ? 0.2 : 30);
        continue;
      }
      EXPECT_EQ(optimizer.progress().lamb_coeffs, (std::vector{0.2, 20.0}))
          << t;
      for (std::size_t i = 0; i < 2; ++i)
        average[i] = 0.5 * average[i] + (1 - 0.5) * (i == 0 ? 0.2 : 20.0);
      const StateDict state = copy_of(optimizer.state());
      const auto frozen = state.array("lamb_coeff_freeze").as<double>();
      EXPECT_EQ(std::vector<double>(frozen.begin(), frozen.end()), average);
    }
    EXPECT_GT(optimizer.freeze()->frozen_at(), 0);
    EXPECT_TRUE(left_the_limits);
  });
}

}  // namespace
}  // namespace thinwire::optim::onebit_lamb_test
