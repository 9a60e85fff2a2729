// SPDX-License-Identifier: Apache-2.0
// By host: when 1-bit Adam's variance is frozen.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "optim/low_bit/by_host.h"
#include "optim/naive/onebit_adam.h"

namespace thinwire::optim::by_host_variance_test {
namespace {

using namespace test::by_host;

class VarianceByHost : public ::testing::TestWithParam<Ranks> {};
INSTANTIATE_TEST_SUITE_P(All, VarianceByHost, ::testing::ValuesIn(kRanks),
                         name_of);

// The last exact step, found in plain loops.
std::int64_t automatic_freeze(Ranks ranks, const OnebitAdamOptions& options,
                              const Given& given) {
  OnebitAdamOptions never = options;
  never.freeze.step = given.steps;
  test::naive::OnebitAdam exact(ranks.hosts, given.layout, never,
                                test::normal(given.layout.size(), 3));
  const auto grads = means(given, ranks);
  std::vector<double> norms;
  for (std::int64_t t = 1; t < given.steps; ++t) {
    exact.step(grads[static_cast<std::size_t>(t - 1)]);
    double sum = 0;
    for (const float v : exact.variance()) sum += double{v};
    norms.push_back(sum /
                    (1 - std::pow(options.beta2, static_cast<double>(t))));
    if (t < options.freeze.min_step) continue;
    const double before = norms[static_cast<std::size_t>(t - 51)];
    const double ratio = norms.back() / before;
    if (std::min(ratio, 1 / ratio) >= options.freeze.ratio) return t;
  }
  return given.steps;
}

// Gradients that become smaller: the variance has not settled at first.
TEST_P(VarianceByHost, TheAutomaticFreezeComesWhenTheVarianceHasSettled) {
  OnebitAdamOptions options{
      .learning_rate = 0.02,
      .beta2 = 0.9,
      .freeze = {.step = kAutoFreeze, .min_step = 52, .ratio = 0.8}};
  options.groups.resize(2);
  const Given given{.steps = 90, .exact_steps = 90, .settles = true};
  OnebitAdamOptions fixed = options;
  fixed.freeze.step = automatic_freeze(GetParam(), options, given);
  EXPECT_GT(fixed.freeze.step, 55);
  EXPECT_LT(fixed.freeze.step, 88);
  expect_same_run(GetParam(), given,
                  test::naive::OnebitAdam(GetParam().hosts, given.layout, fixed,
                                          test::normal(given.layout.size(), 3)),
                  test::onebit_adam(options));
}

}  // namespace
}  // namespace thinwire::optim::by_host_variance_test
