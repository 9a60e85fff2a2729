// SPDX-License-Identifier: Apache-2.0
// Few bits on the wire have the bits of plain loops, however they get there.
#include <gtest/gtest.h>

#include "optim/support.h"
#include "support/sanitizers.h"
#include "zero/naive_wire.h"
#include "zero/support.h"
#include "zero/ways.h"

namespace thinwire::zero::low_bit_test {
namespace {

using test::Handed;
using test::NaiveWire;
using test::Way;
using test::ZeroRun;

constexpr int kSteps = 4;
constexpr double kScale = 64;
constexpr double kMostNorm = 20;

struct Case {
  int world = 2;
  DType dtype = DType::kFloat32;
  WireOptions wire{.bits_up = 4, .bits_down = 4};
  bool is_lamb = false;

  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << to_string(c.dtype) << "_w" << c.world << "_up"
               << c.wire.bits_up << "_down" << c.wire.bits_down
               << to_string(c.wire.residuals()) << (c.is_lamb ? "_lamb" : "");
  }
};

std::vector<Case> cases() {
  constexpr DType kFp32 = DType::kFloat32;
  std::vector<Case> all;
  for (const int world : {2, 3, 4, 8})
    for (const DType dtype : {kFp32, DType::kFloat16, DType::kBFloat16}) {
      all.push_back({world, dtype, {.bits_up = 4, .bits_down = 4}});
      all.push_back({world,
                     dtype,
                     {.bits_up = 8, .bits_down = 4, .residual_dtype = kFp32},
                     true});
      if (world < 4)
        all.push_back(
            {world,
             dtype,
             {.bits_up = 4, .bits_down = 0, .after_skip = AfterSkip::kKeep}});
    }
  return test::fewer_if_sanitized(all, 6);
}

MakeRule make_rule(bool is_lamb) {
  if (is_lamb)
    return test::lamb_rule({.learning_rate = 0.01, .weight_decay = 0.1});
  return test::adam_rule({.learning_rate = 0.01,
                          .weight_decay = 0.1,
                          .groups = {{}, {.learning_rate = 0.02}}});
}

// What one rank's backward gives, rounded as it comes; in step 2 the last rank
// overflows.
std::vector<float> gradient(const Case& c, int step, int rank, int k = 0) {
  auto values = test::normal(test::awkward_layout().size(),
                             static_cast<unsigned>(100 * step + 10 * k + rank));
  const auto scale =
      static_cast<float>(c.dtype == DType::kFloat16 ? kScale : 1);
  for (float& value : values) value = test::rounded_to(c.dtype, value * scale);
  if (step == 2 && rank == c.world - 1) values[4321] = INFINITY;
  return values;
}

NaiveWire::Gradients gradients(const Case& c, int step, int k = 0) {
  NaiveWire::Gradients all;
  for (int r = 0; r < c.world; ++r) all.push_back(gradient(c, step, r, k));
  return all;
}

ZeroOptions options(const Case& c, int stage) {
  return {.stage = stage,
          .dtype = c.dtype,
          .loss_scale = {.initial_scale = kScale, .dynamic = false},
          .exchange = {.max_grad_norm = kMostNorm,
                       .bucket_elements = 3000,
                       .verify_every = 1,
                       .num_threads = 1},
          .wire = c.wire};
}

double scale_of(const Case& c) {
  return c.dtype == DType::kFloat16 ? kScale : 1;
}

optim::StepReport step(ZeroRun& run, const std::vector<float>& values,
                       Handed handed, int rank) {
  Buffer grads = test::rounded(values, run.optimizer->options().dtype);
  return test::step(*run.optimizer, run.layout, run.params.view(), grads.view(),
                    handed, static_cast<unsigned>(rank));
}

class LowBit : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, LowBit, ::testing::ValuesIn(cases()),
                         ::testing::PrintToStringParamName());

TEST_P(LowBit, HasTheBitsOfPlainLoops) {
  const Case c = GetParam();
  const std::vector<Way> ways = {
      {.stage = 1},
      {.stage = 1, .handed = Handed::kEarly, .bucket = 1},
      {.stage = 1, .handed = Handed::kBackwards, .threads = 2},
      {.stage = 1, .bucket = 1 << 20, .overlap = false},
      {.stage = 2},
      {.stage = 2, .handed = Handed::kBackwards, .bucket = 1},
      {.stage = 2, .handed = Handed::kShuffled, .bucket = 1, .threads = 2},
      {.stage = 2, .handed = Handed::kForwards, .bucket = 1 << 20},
      {.stage = 2, .handed = Handed::kForwards, .overlap = false},
  };
  for (const Way& way : ways) {
    // Gradients that have not been sent cannot be lost.
    Case as = c;
    if (way.stage == 1 && !way.overlap) as.wire.after_skip = AfterSkip::kKeep;
    NaiveWire naive(test::awkward_layout(), make_rule(c.is_lamb), c.world,
                    c.dtype, as.wire,
                    test::normal(test::awkward_layout().size(), 3));
    std::vector<std::vector<float>> params;
    std::vector<double> norms;
    for (int t = 0; t < kSteps; ++t) {
      norms.push_back(naive.step(gradients(c, t), scale_of(c), kMostNorm));
      params.push_back(naive.params);
    }
    test::run_ranks("local", c.world, [&](comm::Communicator& comm) {
      ZeroOptions of_way = options(c, way.stage);
      of_way.exchange.bucket_elements = way.bucket;
      of_way.exchange.num_threads = way.threads;
      of_way.overlap = way.overlap;
      ZeroRun run(comm, test::awkward_layout(), make_rule(c.is_lamb), of_way);
      for (int t = 0; t < kSteps; ++t) {
        const auto at = static_cast<std::size_t>(t);
        const auto report =
            step(run, gradient(c, t, comm.rank()), way.handed, comm.rank());
        EXPECT_EQ(report.applied, t != 2);
        if (report.applied) {
          EXPECT_EQ(report.grad_norm, norms[at]);
        }
        EXPECT_EQ(report.residuals_cleared,
                  t == 2 && !as.wire.keeps_residuals(c.dtype));
        EXPECT_EQ(run.values(), params[at])
            << "step " << t << ", stage " << way.stage;
      }
      EXPECT_EQ(run.masters(), naive.masters);
    });
  }
}

// Stage 1 adds backwards up in fp32, stage 2 in residuals; also where no
// backward was known to be the last.
TEST_P(LowBit, AddsBackwardsUpBeforeItSendsThem) {
  Case c = GetParam();
  c.wire.residual_dtype = DType::kFloat32;
  for (const int stage : {1, 2})
    for (const bool is_known : {true, false}) {
      NaiveWire naive(test::awkward_layout(), make_rule(c.is_lamb), c.world,
                      c.dtype, c.wire,
                      test::normal(test::awkward_layout().size(), 3));
      std::vector<std::vector<float>> params;
      for (int t = 0; t < kSteps; ++t) {
        NaiveWire::Gradients first = gradients(c, t, 0);
        const NaiveWire::Gradients second = gradients(c, t, 1);
        if (stage == 2) {
          const auto before = naive.residuals;
          naive.add(first, scale_of(c));
          naive.step(second, scale_of(c), kMostNorm);
          if (t == 2 && c.wire.keeps_residuals(c.dtype))
            naive.residuals = before;
        } else {
          for (std::size_t r = 0; r < first.size(); ++r)
            for (std::size_t i = 0; i < first[r].size(); ++i)
              first[r][i] = first[r][i] + second[r][i];
          naive.step(first, scale_of(c), kMostNorm);
        }
        params.push_back(naive.params);
      }
      test::run_ranks("local", c.world, [&](comm::Communicator& comm) {
        ZeroRun run(comm, test::awkward_layout(), make_rule(c.is_lamb),
                    options(c, stage));
        for (int t = 0; t < kSteps; ++t) {
          for (const int k : {0, 1})
            test::hand_over(
                *run.optimizer, run.layout,
                test::rounded(gradient(c, t, comm.rank(), k), c.dtype).view(),
                Handed::kBackwards, 0,
                {.is_first = k == 0, .is_last = is_known && k == 1});
          EXPECT_EQ(run.optimizer->step().applied, t != 2);
          EXPECT_EQ(run.values(), params[static_cast<std::size_t>(t)])
              << "step " << t << ", stage " << stage;
        }
      });
    }
}

TEST(LowBitWire, WithoutBitsOrOnOneRankIsExact) {
  for (const int world : {1, 2, 3})
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
      for (const int stage : {1, 2}) {
        Case c{world, dtype, {}};
        test::run_ranks("local", world, [&](comm::Communicator& comm) {
          ZeroRun exact(comm, test::awkward_layout(), make_rule(true),
                        options(c, stage));
          ZeroOptions with = options(c, stage);
          if (world == 1) {
            with.wire = {.bits_up = 4, .bits_down = 8};
          } else {
            with.wire = {.residual_dtype = DType::kFloat32,
                         .after_skip = AfterSkip::kKeep};
          }
          ZeroRun run(comm, test::awkward_layout(), make_rule(true), with);
          for (int t = 0; t < kSteps; ++t) {
            const auto own = gradient(c, t, comm.rank());
            const auto want = step(exact, own, {}, comm.rank());
            const auto got = step(run, own, {}, comm.rank());
            EXPECT_EQ(got.applied, want.applied);
            if (got.applied) {
              EXPECT_EQ(got.grad_norm, want.grad_norm);
            }
            EXPECT_EQ(run.values(), exact.values());
          }
        });
      }
}

// The masters do not know how their replicas are kept.
TEST(LowBitWire, DownAloneLeavesMastersExact) {
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Case c{3, dtype, {}};
    test::run_ranks("local", c.world, [&](comm::Communicator& comm) {
      ZeroRun exact(comm, test::awkward_layout(), make_rule(false),
                    options(c, 2));
      ZeroOptions with = options(c, 2);
      with.wire = {.bits_up = 0, .bits_down = 8};
      ZeroRun run(comm, test::awkward_layout(), make_rule(false), with);
      for (int t = 0; t < kSteps; ++t) {
        const auto own = gradient(c, t, comm.rank());
        step(exact, own, {}, comm.rank());
        step(run, own, {}, comm.rank());
        EXPECT_EQ(run.masters(), exact.masters());
      }
      EXPECT_NE(run.values(), exact.values());
    });
  }
}

}  // namespace
}  // namespace thinwire::zero::low_bit_test
