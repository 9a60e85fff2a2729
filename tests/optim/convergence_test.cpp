// SPDX-License-Identifier: Apache-2.0
// The low-bit optimizers get as far as their exact counterparts on a quadratic
// whose gradients are mostly noise.
#include <gtest/gtest.h>

#include <cmath>

#include "optim/support.h"

namespace thinwire::optim::convergence_test {
namespace {

constexpr int kWorld = 4;
constexpr std::int64_t kSteps = 240;

ParameterLayout layout() {
  return ParameterLayout::of({{"a", {100}}, {"b", {10}}, {"c", {33}}});
}

// sum of a_i (p_i - x_i)^2 / 2n, with curvatures between 0.1 and 1.
struct Quadratic {
  std::vector<float> target = test::normal(layout().size(), 11);

  [[nodiscard]] static double curvature(std::size_t i) {
    return 0.1 + 0.9 * static_cast<double>(i % 7) / 6;
  }
  [[nodiscard]] double loss(const std::vector<float>& p) const {
    double sum = 0;
    for (std::size_t i = 0; i < p.size(); ++i)
      sum += curvature(i) * (p[i] - target[i]) * (p[i] - target[i]) / 2;
    return sum / static_cast<double>(p.size());
  }
  [[nodiscard]] std::vector<float> gradient(const std::vector<float>& p,
                                            std::int64_t t, int rank) const {
    auto g = test::normal(p.size(), 5000 + static_cast<std::uint32_t>(t) * 16 +
                                        static_cast<std::uint32_t>(rank));
    for (std::size_t i = 0; i < p.size(); ++i)
      g[i] += static_cast<float>(curvature(i) * (p[i] - target[i]));
    return g;
  }
};

double loss_after(const test::MakeOptimizer& make, double rate) {
  const Quadratic quadratic;
  double loss = 0;
  comm::run_local_ranks(kWorld, [&](comm::Communicator& comm) {
    const auto optimizer = make(comm, layout());
    std::vector<float> params(layout().size(), 3.0f);
    for (std::int64_t t = 1; t <= kSteps; ++t) {
      const double left = 1 - static_cast<double>(t - 1) / kSteps;
      optimizer->groups().set_learning_rate(rate * left);
      auto grads = quadratic.gradient(params, t, comm.rank());
      optimizer->step(params, grads);
    }
    optim::synchronize(*optimizer, params);
    if (comm.rank() == 0) loss = quadratic.loss(params);
  });
  return loss;
}

// Exact training ends at a 500th of where it begins; a 250th more is the same.
void expect_as_good(double loss, double exact) {
  const double start =
      Quadratic().loss(std::vector<float>(layout().size(), 3.0f));
  EXPECT_LT(exact, start / 500);
  EXPECT_LT(loss, exact + start / 250) << "exact: " << exact;
}

TEST(Convergence, OnebitLambGetsAsFarAsLamb) {
  const double exact = loss_after(test::exact_lamb({.beta2 = 0.99}), 0.05);
  for (const std::int64_t freeze : {30, 60})
    expect_as_good(loss_after(test::onebit_lamb(
                                  {.beta2 = 0.99, .freeze = {.step = freeze}}),
                              0.05),
                   exact);
}

TEST(Convergence, ZeroOneAdamGetsAsFarAsAdam) {
  const double exact = loss_after(test::exact_adam({.beta2 = 0.99}), 0.1);
  for (const std::int64_t clipper : {1, 4})
    expect_as_good(
        loss_after(test::zero_one_adam({.beta2 = 0.99,
                                        .var_freeze_step = kSteps / 2,
                                        .local_step_scaler = kSteps / 8,
                                        .local_step_clipper = clipper}),
                   0.1),
        exact);
}

TEST(Convergence, OnebitAdamGetsAsFarAsAdam) {
  const double exact = loss_after(test::exact_adam({.beta2 = 0.99}), 0.1);
  expect_as_good(
      loss_after(test::onebit_adam({.beta2 = 0.99, .freeze = {.step = 60}}),
                 0.1),
      exact);
}

}  // namespace
}  // namespace thinwire::optim::convergence_test
