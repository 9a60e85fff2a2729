// SPDX-License-Identifier: Apache-2.0
// Norms of gradients that are formed before the step.
#include <gtest/gtest.h>

#include <algorithm>

#include "optim/low_bit/cases.h"
#include "optim/states.h"
#include "support/errors.h"
#include "thinwire/comm/local.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::optim::measure_early_test {
namespace {

using kernels::kSumChunk;

const ParameterLayout& layout() {
  static const ParameterLayout all = ParameterLayout::of(
      {{"a", {700, 5}, 0}, {"b", {33}, 1}, {"c", {2000}, 1}});
  return all;
}

// Exact optimizers measure nothing.
std::vector<test::LowBitCase> cases() {
  auto all = test::all_optimizers({.exchange = {.max_grad_norm = 1}});
  all.erase(all.begin(), all.begin() + 2);
  return all;
}

class MeasureEarly : public ::testing::TestWithParam<test::LowBitCase> {};
INSTANTIATE_TEST_SUITE_P(All, MeasureEarly, ::testing::ValuesIn(cases()),
                         [](const auto& tested) { return tested.param.name; });

using Measure = std::function<void(Optimizer&, std::vector<float>& grads,
                                   std::int64_t step)>;

// Parameters of rank 0 after the run, and what the steps reported.
std::pair<std::vector<float>, std::vector<double>> run(
    const test::LowBitCase& tested, const Measure& measure) {
  std::vector<float> result;
  std::vector<double> norms;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const auto optimizer = tested.make(comm, layout());
    std::vector<float> params = test::normal(layout().size(), 3);
    for (std::int64_t t = 1; t <= tested.steps; ++t) {
      auto grads = test::gradient(layout().size(), t, comm.rank());
      if (optimizer->early()->measures()) measure(*optimizer, grads, t);
      const StepReport report = optimizer->step(params, grads);
      if (comm.rank() == 0) norms.push_back(report.grad_norm);
    }
    if (comm.rank() == 0) result = params;
  });
  return {result, norms};
}

TEST_P(MeasureEarly, GivesTheSameBitsForAnyMeasurements) {
  const std::size_t n = layout().size();
  const auto plain = run(GetParam(), [](auto&, auto&, auto) {});
  const auto whole = run(GetParam(), [&](Optimizer& o, auto& grads, auto) {
    o.early()->measure(grads, {0, n});
  });
  const auto parts = run(GetParam(), [&](Optimizer& o, auto& grads, auto t) {
    o.early()->measure(grads, {4 * kSumChunk, n - 4 * kSumChunk});
    if (t % 2 == 0) o.early()->measure(grads, {kSumChunk, 2 * kSumChunk});
    o.early()->measure(grads, {0, 0});
  });
  EXPECT_EQ(whole, plain);
  EXPECT_EQ(parts, plain);
  const auto other = [&](bool forgets) {
    return run(GetParam(), [&](Optimizer& o, auto&, auto) {
      o.early()->measure(std::vector<float>(n, 1e6f), {0, n});
      if (forgets) o.early()->forget();
    });
  };
  EXPECT_EQ(other(true), plain);
  // What is measured is what the step goes by.
  EXPECT_NE(other(false).second, plain.second);
}

TEST_P(MeasureEarly, RefusesUnfitRanges) {
  const std::size_t n = layout().size();
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    const auto optimizer = GetParam().make(comm, layout());
    std::vector<float> params = test::normal(n, 3);
    auto grads = test::gradient(n, 1, 0);
    ASSERT_EQ(optimizer->progress().phase, Phase::kExact);
    test::expect_error(ErrorCode::kFailedPrecondition, {"measure:"}, [&] {
      optimizer->early()->measure(grads, {0, n});
    });
    std::int64_t t = 1;
    while (!optimizer->early()->measures()) {
      auto own = test::gradient(n, t++, 0);
      (void)optimizer->step(params, own);
    }
    for (const Range bad : {Range{1, kSumChunk}, Range{0, 5},
                            Range{0, n + kSumChunk}, Range{8192, 1}})
      test::expect_invalid({"range", "1024"},
                           [&] { optimizer->early()->measure(grads, bad); });
    test::expect_invalid({"grads", "3"}, [&] {
      optimizer->early()->measure(std::vector<float>(3), {0, 0});
    });
  });
}

}  // namespace
}  // namespace thinwire::optim::measure_early_test
