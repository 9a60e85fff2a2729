// SPDX-License-Identifier: Apache-2.0
// Every stage gives the bits of data parallelism without shards.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <vector>

#include "optim/support.h"
#include "support/hosts.h"
#include "support/sanitizers.h"
#include "zero/support.h"
#include "zero/ways.h"

namespace thinwire::zero::stages_test {
namespace {

using optim::LambOptions;
using optim::StepReport;
using test::Handed;
using test::Way;

constexpr int kSteps = 4;
constexpr double kScale = 1024;

struct Case {
  int world = 1;
  DType dtype = DType::kFloat32;
  bool is_lamb = false;

  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << (c.is_lamb ? "lamb_" : "adam_") << to_string(c.dtype) << "_w"
               << c.world;
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int world : {3, 1, 8})
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
      for (const bool is_lamb : {false, true})
        all.push_back({world, dtype, is_lamb});
  return test::fewer_if_sanitized(all, 6);
}

// More than a bucket and than a cell, in two groups, with empty ones.
ParameterLayout layout() {
  return ParameterLayout::of({{"empty", {0}, 0},
                              {"one", {1}, 0},
                              {"seven", {7}, 1},
                              {"wide", {3, 1366}, 1},
                              {"none", {4, 0}, 0},
                              {"large", {9000}, 0},
                              {"w33", {33}, 1},
                              {"last", {31}, 0}});
}

MakeRule make_rule(bool is_lamb) {
  if (!is_lamb)
    return test::adam_rule({.learning_rate = 0.01,
                            .weight_decay = 0.1,
                            .groups = {{}, {.learning_rate = 0.02}}});
  LambOptions lamb{.learning_rate = 0.01, .weight_decay = 0.1};
  lamb.groups.resize(2);
  lamb.groups[0].max_coeff = 0.3;  // below the ratios of most parameters
  lamb.groups[1].weight_decay = 0;
  return test::lamb_rule(lamb);
}

optim::ExchangeOptions exchange(std::size_t bucket, int threads) {
  return {.max_grad_norm = 0.5,
          .bucket_elements = bucket,
          .verify_every = 2,
          .num_threads = threads};
}

precision::LossScalerOptions scaler() {
  return {.initial_scale = kScale, .window = 2, .hysteresis = 1};
}

Buffer initial(const Case& c) {
  return test::rounded(test::normal(layout().size(), 5), c.dtype);
}

// This rank's gradient, `scale` times too long; in step 2 it overflows.
Buffer gradient(const Case& c, int step, int rank, double scale) {
  std::vector<float> values = test::gradient(layout().size(), step, rank);
  for (float& value : values) value *= static_cast<float>(scale);
  if (step == 2 && rank == c.world - 1 && c.dtype == DType::kFloat16)
    values[4000] = std::numeric_limits<float>::infinity();
  return test::rounded(values, c.dtype);
}

struct Trace {
  std::vector<float> params;
  std::vector<double> norms;
  std::vector<bool> applied;

  void add(const StepReport& report, ConstView now) {
    norms.push_back(report.grad_norm);
    applied.push_back(report.applied);
    const auto values = test::floats_of(now);
    params.insert(params.end(), values.begin(), values.end());
  }
};

Trace unsharded(const Case& c, comm::Communicator& comm) {
  Buffer params = initial(c);
  const test::Unsharded run(comm, layout(), make_rule(c.is_lamb), c.dtype,
                            params.view(), scaler(), exchange(1000, 1));
  Trace trace;
  for (int t = 0; t < kSteps; ++t) {
    Buffer grads = gradient(c, t, comm.rank(), run.loss_scale());
    const auto report = run.optimizer->step(params.view(), grads.view());
    trace.add(report, params.view());
  }
  return trace;
}

Trace sharded(const Case& c, const Way& way, comm::Communicator& comm) {
  Buffer params = initial(c);
  ZeroOptimizer optimizer(comm, layout(), make_rule(c.is_lamb), params.view(),
                          {.stage = way.stage,
                           .dtype = c.dtype,
                           .loss_scale = scaler(),
                           .exchange = exchange(way.bucket, way.threads),
                           .overlap = way.overlap});
  Trace trace;
  for (int t = 0; t < kSteps; ++t) {
    Buffer grads = gradient(c, t, comm.rank(), optimizer.loss_scale());
    const StepReport report =
        test::step(optimizer, layout(), params.view(), grads.view(), way.handed,
                   /*seed=*/0);
    trace.add(report, params.view());
  }
  return trace;
}

// They have the bits of `want`.
void expect_same(const Case& c, const std::vector<Way>& ways,
                 comm::Communicator& comm, const Trace& want) {
  for (std::size_t w = 0; w < ways.size(); ++w) {
    const Trace got = sharded(c, ways[w], comm);
    EXPECT_EQ(got.norms, want.norms) << "way " << w;
    EXPECT_EQ(got.applied, want.applied) << "way " << w;
    EXPECT_EQ(got.params, want.params) << "way " << w;
  }
}

class Stages : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, Stages, ::testing::ValuesIn(cases()),
                         ::testing::PrintToStringParamName());

TEST_P(Stages, GiveTheBitsOfUnshardedTraining) {
  const Case c = GetParam();
  const std::vector<Way> ways = {
      {.stage = 1},
      {.stage = 1, .handed = Handed::kEarly, .bucket = 1},
      {.stage = 1, .handed = Handed::kBackwards, .threads = 2},
      {.stage = 1, .bucket = 1 << 20},
      {.stage = 2},
      {.stage = 2, .handed = Handed::kBackwards, .bucket = 1},
      {.stage = 2, .handed = Handed::kForwards, .bucket = 1, .threads = 2},
      {.stage = 2, .handed = Handed::kBackwards, .bucket = 1 << 20},
      {.stage = 2, .handed = Handed::kForwards, .overlap = false},
      {.stage = 2, .handed = Handed::kBackwards},
  };
  test::run_ranks("local", c.world, [&](comm::Communicator& comm) {
    const Trace want = unsharded(c, comm);
    if (c.dtype == DType::kFloat16) {
      EXPECT_FALSE(want.applied[2]);
    }
    expect_same(c, ways, comm, want);
  });
}

// Sums are formed per host first, in all stages alike, so they are others than
// those over all ranks in their order.
TEST(StagesByHost, GiveTheBitsOfUnshardedTraining) {
  const std::vector<Way> ways = {
      {.stage = 1},
      {.stage = 1, .handed = Handed::kEarly, .bucket = 1},
      {.stage = 1, .bucket = 1 << 20},
      {.stage = 2, .handed = Handed::kBackwards, .threads = 2},
      {.stage = 2, .handed = Handed::kForwards, .bucket = 0},
  };
  constexpr int kWorld = 4;
  const auto run = [&](const Case& c, test::Placing placing) {
    test::run_ranks("local", kWorld, [&](comm::Communicator& comm) {
      const auto grouped =
          comm.by_host(test::hosts_of(kWorld, 2, placing, comm.rank()));
      const Trace want = unsharded(c, *grouped);
      // In 16 bits the one rounding hides the order of additions.
      if (c.dtype == DType::kFloat32) {
        EXPECT_FALSE(want.params == unsharded(c, comm).params);
      }
      expect_same(c, ways, *grouped, want);
    });
  };
  for (const auto placing :
       {test::Placing::kBlocks, test::Placing::kRoundRobin}) {
    for (const bool is_lamb : {false, true}) {
      SCOPED_TRACE(is_lamb);
      run({kWorld, DType::kFloat32, is_lamb}, placing);
      run({kWorld, DType::kBFloat16, is_lamb}, placing);
    }
    run({kWorld, DType::kFloat16, false}, placing);
  }
}

}  // namespace
}  // namespace thinwire::zero::stages_test
