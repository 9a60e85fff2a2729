// SPDX-License-Identifier: Apache-2.0
// Low-bit optimizers by host: the bits of plain loops, the automatic freeze,
// clipping, and what is sent. Gradients that are not finite:
// nonfinite_test.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "optim/naive/drive.h"
#include "optim/naive/lamb.h"
#include "optim/naive/onebit_adam.h"
#include "optim/naive/zero_one_adam.h"
#include "support/converted.h"

namespace thinwire::optim::by_host_test {
namespace {

using test::Drive;
using test::Ranks;
using test::run_by_host;
using Floats = std::vector<float>;

// Larger at first.
Floats settling(const ParameterLayout& layout, std::int64_t t, int rank) {
  Floats g = test::late_on_one_rank(layout, t, rank);
  for (float& value : g) value *= 1 + 3 * std::exp(-static_cast<float>(t) / 2);
  return g;
}

Drive driven(DType dtype, std::int64_t exact_steps) {
  return {.steps = 9,
          .gradient = test::late_on_one_rank,
          .dtype = dtype,
          .exact_steps = exact_steps};
}

// Options that cut blocks, buckets and groups otherwise.
template <class Options>
std::vector<Options> variants(const Options& plain) {
  Options masks = test::with_second_group(plain);
  masks.groups[0].exp_avg_mask =
      test::every_third_masked(test::grouped_layout(), 0);
  masks.compression.exchange.bucket_elements = 400;
  masks.compression.exchange.num_threads = 3;
  Options small = plain;
  small.compression.exchange.bucket_elements = 1;
  small.compression.residual_dtype = DType::kBFloat16;
  return {plain, masks, small};
}

template <class Naive, class Options>
void expect_plain_loops(Ranks ranks, const Drive& run, Options options,
                        test::MakeOptimizer (*make)(Options)) {
  if (options.groups.empty()) options.groups.resize(2);
  test::expect_plain_loops<Naive>(ranks, test::grouped_layout(), run, options,
                                  make);
}

class ByHost : public ::testing::TestWithParam<Ranks> {};
INSTANTIATE_TEST_SUITE_P(All, ByHost, ::testing::ValuesIn(test::kByHost),
                         test::name_of_ranks);

// Flat, outliers of 16 bits are bounded in 16 bits; plain loops of LAMB are
// not.
bool bounds_otherwise(Ranks ranks, DType dtype) {
  return ranks.per_host == 1 && dtype != DType::kFloat32;
}

// Warm-ups are exact or over few bits.
TEST_P(ByHost, TwoStagesHaveTheBitsOfPlainLoops) {
  using Way = std::pair<DType, int>;  // of gradients, bits of the warm-up
  for (const auto& [dtype, bits] :
       {Way(DType::kFloat32, 0), Way(DType::kFloat32, 8),
        Way(DType::kBFloat16, 4), Way(DType::kFloat16, 0)}) {
    const Drive run = driven(dtype, bits == 0 ? 3 : 0);
    const FreezeOptions freeze{.step = 3, .warmup_bits = bits};
    for (const auto& o :
         variants(OnebitAdamOptions{.learning_rate = 0.02, .freeze = freeze}))
      expect_plain_loops<test::naive::OnebitAdam>(GetParam(), run, o,
                                                  test::onebit_adam);
    if (bounds_otherwise(GetParam(), dtype) || dtype == DType::kFloat16)
      continue;
    for (const auto& o :
         variants(OnebitLambOptions{.learning_rate = 0.02, .freeze = freeze}))
      expect_plain_loops<test::naive::OnebitLamb>(GetParam(), run, o,
                                                  test::onebit_lamb);
  }
}

// Variance steps 1, 2, 4, 6, 1-bit steps 3 and 5, then syncs and local steps.
TEST_P(ByHost, ZeroOneAdamTakesEqualLocalStepsInsideAHost) {
  for (ZeroOneAdamOptions o : variants(ZeroOneAdamOptions{.learning_rate = 0.01,
                              .var_freeze_step = 6,
                              .var_update_scaler = 2,
                              .local_step_scaler = 2,
                              .local_step_clipper = 4}))
    for (const int bits : {0, 8}) {
      o.warmup_bits = bits;
      expect_plain_loops<test::naive::ZeroOneAdam>(
          GetParam(), {.steps = 18, .gradient = test::late_on_one_rank}, o,
          test::zero_one_adam);
    }
}

// ---- the automatic freeze

// The last exact step, found in plain loops.
std::int64_t automatic_freeze(Ranks ranks, const OnebitAdamOptions& options,
                              const Drive& run) {
  const ParameterLayout layout = test::grouped_layout();
  OnebitAdamOptions never = options;
  never.freeze.step = run.steps;
  test::naive::OnebitAdam exact(ranks.hosts, layout, never,
                                test::normal(layout.size(), 3));
  std::vector<double> norms;
  for (std::int64_t t = 1; t < run.steps; ++t) {
    exact.step(run.of_workers(ranks, layout, t));
    double sum = 0;
    for (const float v : exact.variance()) sum += double{v};
    norms.push_back(sum /
                    (1 - std::pow(options.beta2, static_cast<double>(t))));
    if (t < options.freeze.min_step) continue;
    const double before = norms[static_cast<std::size_t>(t - 51)];
    const double ratio = norms.back() / before;
    if (std::min(ratio, 1 / ratio) >= options.freeze.ratio) return t;
  }
  return run.steps;
}

// Gradients that become smaller: the variance has not settled at first.
TEST_P(ByHost, TheAutomaticFreezeComesWhenTheVarianceHasSettled) {
  OnebitAdamOptions options{
      .learning_rate = 0.02,
      .beta2 = 0.9,
      .freeze = {.step = kAutoFreeze, .min_step = 52, .ratio = 0.8}};
  options.groups.resize(2);
  const Drive run{.steps = 90, .gradient = settling};
  OnebitAdamOptions fixed = options;
  fixed.freeze.step = automatic_freeze(GetParam(), options, run);
  EXPECT_GT(fixed.freeze.step, 55);
  EXPECT_LT(fixed.freeze.step, 88);
  const ParameterLayout layout = test::grouped_layout();
  test::expect_same_run(GetParam(), layout, run,
                        test::naive::OnebitAdam(GetParam().hosts, layout, fixed,
                                                test::normal(layout.size(), 3)),
                        test::onebit_adam(options));
}

// ---- clipping

// One rank's reports of every step.
std::vector<StepReport> reports(Ranks ranks, const test::MakeOptimizer& make,
                                const ParameterLayout& layout,
                                std::int64_t steps) {
  std::vector<StepReport> of_first;
  run_by_host(ranks, [&](comm::Communicator& comm) {
    const auto optimizer = make(comm, layout);
    Floats params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= steps; ++t) {
      const StepReport report =
          test::step_of(*optimizer, params, t, comm.rank());
      if (comm.rank() == 0) of_first.push_back(report);
    }
  });
  return of_first;
}

TEST_P(ByHost, ClipsByTheNormsOfHostsMeans) {
  const ParameterLayout layout = ParameterLayout::of(
      {{"frozen", {7000}, 0}, {"exact", {333}, 1}, {"more", {1500}, 0}});
  OnebitAdamOptions options{.learning_rate = 0.02, .freeze = {.step = 1}};
  options.groups.resize(2);
  options.groups[1].non_freeze = true;
  options.compression.exchange.max_grad_norm = 0.5;
  options.compression.exchange.bucket_elements = 3000;
  const Ranks ranks = GetParam();
  const auto got = reports(ranks, test::onebit_adam(options), layout, 4);
  double rho = 0;  // which stays what the exact step has made it
  for (std::int64_t t = 2; t <= 4; ++t) {
    double squares = 0;
    for (int h = 0; h < ranks.hosts; ++h) {
      std::vector<double> mean(layout.size());
      for (int l = 0; l < ranks.per_host; ++l) {
        const Floats g =
            test::gradient(layout.size(), t, h * ranks.per_host + l);
        for (std::size_t i = 0; i < g.size(); ++i)
          mean[i] += double{g[i]} / ranks.per_host;
      }
      for (const double g : mean) squares += g * g;
    }
    const double rms = std::sqrt(squares / ranks.hosts);
    const StepReport& report = got[static_cast<std::size_t>(t - 1)];
    if (t == 2) rho = report.grad_norm / rms;
    EXPECT_NEAR(report.grad_norm, rho * rms, 1e-6 * rho * rms);
    EXPECT_NEAR(report.clip_factor, 0.5 / (rho * rms), 1e-6);
  }
}

// rho is calibrated in exact steps by what compressed ones use: the estimate is
// the norm that an exact step would have found.
TEST_P(ByHost, TheCalibratedNormIsThatOfTheMean) {
  const ParameterLayout layout = ParameterLayout::of({{"p", {60'000}}});
  const auto compressed = reports(
      GetParam(), test::onebit_adam({.freeze = {.step = 10}}), layout, 16);
  const auto exact = reports(
      GetParam(), test::onebit_adam({.freeze = {.step = 16}}), layout, 16);
  for (std::size_t t = 10; t < 16; ++t) {
    EXPECT_TRUE(compressed[t].grad_norm_is_estimate);
    EXPECT_NEAR(compressed[t].grad_norm, exact[t].grad_norm,
                0.03 * exact[t].grad_norm);
  }
}

// ---- what is sent, and early

TEST_P(ByHost, BitsDoNotDependOnEarlyReduction) {
  const ParameterLayout layout = test::grouped_layout();
  OnebitAdamOptions options{.learning_rate = 0.02, .freeze = {.step = 2}};
  options.groups.resize(2);
  options.compression.exchange.bucket_elements = 300;
  options.compression.exchange.max_grad_norm = 1;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    run_by_host(GetParam(), [&](comm::Communicator& comm) {
      OnebitAdam plain(comm, layout, options);
      OnebitAdam early(comm, layout, options);
      Floats want = test::normal(layout.size(), 3);
      Floats got = want;
      for (std::int64_t t = 1; t <= 6; ++t) {
        const auto g = test::gradient(layout.size(), t, comm.rank());
        Buffer own = test::converted(g, dtype);
        Buffer begun = test::converted(g, dtype);
        plain.step(want, own.view());
        EXPECT_EQ(early.early()->reduces(), t <= 2 || !comm.hosts().is_flat());
        if (early.early()->reduces()) {
          early.early()->reduce(begun.view(), {1024, layout.size() - 1024});
          if (t % 2 == 0) early.early()->reduce(begun.view(), {0, 1024});
          early.early()->finish();
        }
        early.step(got, begun.view());
        ASSERT_EQ(got, want) << t;
      }
    });
}

}  // namespace
}  // namespace thinwire::optim::by_host_test
