// SPDX-License-Identifier: Apache-2.0
// What few bits promise of a run: nothing is lost, replicas stay equal and near
// their masters, a skipped step does what its options say.
#include <gtest/gtest.h>

#include <cmath>

#include "support/errors.h"
#include "support/sanitizers.h"
#include "zero/support.h"

namespace thinwire::zero::low_bit_steps_test {
namespace {

using test::two_groups;
using test::ZeroRun;

constexpr auto kBFloat16 = DType::kBFloat16;
constexpr auto kFloat32 = DType::kFloat32;

ZeroOptions few_bits(int stage, DType dtype, const WireOptions& wire) {
  return {.stage = stage,
          .dtype = dtype,
          .loss_scale = {.initial_scale = 64, .dynamic = false},
          .exchange = {.bucket_elements = 2048},
          .wire = wire};
}

std::vector<float> local(const ZeroRun& run, comm::Communicator& comm,
                         unsigned step) {
  return test::normal(run.layout.size(),
                      10 * step + static_cast<unsigned>(comm.rank()));
}

std::vector<float> residuals(const ZeroRun& run) {
  const StateDict state = copy_of(run.optimizer->state());
  return test::floats_of(state.array("worker_error"));
}

// Of all steps: the means that were applied and the mean of what is left over
// are the means of the gradients.
TEST(LowBitSteps, WhatIsNotSentIsKept) {
  constexpr unsigned kSteps = 40;
  for (const DType residual : {kFloat32, kBFloat16})
    for (const int bits : {4, 8})
      test::run_ranks("local", 3, [&](comm::Communicator& comm) {
        ZeroRun run(comm, two_groups(), test::adam_rule(),
                    few_bits(2, kFloat32,
                             {.bits_up = bits, .residual_dtype = residual}));
        const std::size_t n = run.layout.size();
        std::vector<double> lacks(n);
        for (unsigned t = 0; t < kSteps; ++t) {
          const auto own = local(run, comm, t);
          run.backward(own);
          const auto applied = run.gradient();
          run.optimizer->step();
          for (std::size_t i = 0; i < n; ++i)
            lacks[i] += own[i] - static_cast<double>(applied[i]);
        }
        const auto left = residuals(run);
        for (std::size_t i = 0; i < n; ++i)
          lacks[i] -= static_cast<double>(left[i]);
        comm.all_reduce(lacks);
        // Roundings of residuals: half a unit in the last place of each.
        const double each = residual == kFloat32 ? 1e-6 : 1e-2;
        double largest = 0, sum = 0;
        for (const double lack : lacks) {
          largest = std::max(largest, std::abs(lack) / comm.size());
          sum += lack;
        }
        EXPECT_LT(largest, each * std::sqrt(kSteps));
        EXPECT_LT(std::abs(sum) / static_cast<double>(n), each);
        EXPECT_GT(*std::max_element(left.begin(), left.end()), 0.01);
      });
}

TEST(LowBitSteps, ReplicasStayEqualAndNearTheirMasters) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr unsigned kSteps = 300;
#else
  constexpr unsigned kSteps = 10'000;
#endif
  const auto layout = ParameterLayout::of({{"a", {31}}, {"b", {1100}}});
  for (const DType dtype : {kFloat32, kBFloat16})
    test::run_ranks("local", 2, [&](comm::Communicator& comm) {
      ZeroOptions options = few_bits(1, dtype, {.bits_up = 4, .bits_down = 4});
      options.exchange.verify_every = 1;  // throws where replicas differ
      ZeroRun run(comm, layout, test::adam_rule({.learning_rate = 1e-3}),
                  options);
      std::vector<float> grads = local(run, comm, 0);
      for (unsigned t = 0; t < kSteps; ++t) {
        // Turned by one element: new ones cost more than the step.
        std::rotate(grads.begin(), grads.begin() + 1, grads.end());
        EXPECT_TRUE(run.step(grads).applied);
      }
      const auto replicas = run.values(), masters = run.masters();
      double apart = 0, whole = 0;
      for (std::size_t i = 0; i < masters.size(); ++i) {
        apart += std::pow(double{masters[i]} - double{replicas[i]}, 2);
        whole += std::pow(double{masters[i]}, 2);
      }
      EXPECT_LT(std::sqrt(apart / whole), 1e-2);
    });
}

TEST(LowBitSteps, ReplicasReachMastersThatStandStill) {
  for (const DType dtype : {kFloat32, DType::kFloat16, kBFloat16})
    for (const int bits : {4, 8})
      test::run_ranks("local", 3, [&](comm::Communicator& comm) {
        ZeroRun run(comm, two_groups(), test::adam_rule(),
                    few_bits(2, dtype, {.bits_down = bits}));
        for (unsigned t = 0; t < 5; ++t) run.step(local(run, comm, t));
        const auto goal =
            test::floats_of(test::rounded(run.masters(), dtype).view());
        EXPECT_NE(run.values(), goal);
        run.optimizer->groups().set_learning_rate(0);
        for (unsigned t = 0; t < 40; ++t) run.step(local(run, comm, t));
        EXPECT_EQ(run.values(), goal);
        run.step(local(run, comm, 50));
        EXPECT_EQ(run.values(), goal);
      });
}

// The scale can fall no further: the parameter is known at its owner.
TEST(LowBitSteps, AnOverflowThatEndsTheRunNamesItsParameter) {
  for (const bool overlap : {true, false})
    test::run_ranks("local", 3, [&](comm::Communicator& comm) {
      ZeroOptions options = few_bits(1, DType::kFloat16, {.bits_up = 4});
      options.overlap = overlap;
      options.loss_scale = {.initial_scale = 1, .hysteresis = 1};
      ZeroRun run(comm, two_groups(), test::adam_rule(), options);
      auto grads = local(run, comm, 0);
      if (comm.rank() == 2) grads[2000] = 1e9f;
      test::expect_error(ErrorCode::kNonFinite, {"second"},
                         [&] { run.step(grads); });
      EXPECT_TRUE(run.step(local(run, comm, 1)).applied);
    });
}

// A backward that failed before the last is undone, as far as residuals are
// kept.
TEST(LowBitSteps, ACancelledWindowLeavesNothingBehind) {
  for (const AfterSkip after : {AfterSkip::kKeep, AfterSkip::kClear})
    test::run_ranks("local", 2, [&](comm::Communicator& comm) {
      ZeroRun run(
          comm, two_groups(), test::adam_rule(),
          few_bits(
              2, kBFloat16,
              {.bits_up = 4, .residual_dtype = kFloat32, .after_skip = after}));
      run.step(local(run, comm, 0));
      const auto before = residuals(run);
      run.backward(local(run, comm, 1), {.is_last = false});
      EXPECT_NE(residuals(run), before);
      run.optimizer->gradients().begin({.is_first = false, .is_last = false});
      EXPECT_TRUE(run.optimizer->gradients().cancel());
      EXPECT_EQ(residuals(run), after == AfterSkip::kKeep
                                    ? before
                                    : std::vector<float>(before.size()));
      EXPECT_TRUE(run.step(local(run, comm, 2)).applied);
    });
}

TEST(LowBitSteps, RefusesWhatCannotBe) {
  const auto refused = [](ErrorCode code, ZeroOptions options,
                          std::initializer_list<std::string_view> parts) {
    test::expect_error(code, parts, [&] { options.validate(); });
  };
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  refused(kInvalid, {.wire = {.bits_up = 2}},
          {"wire.bits_up", "got 2", "thinwire.lean"});
  refused(kInvalid, {.wire = {.bits_down = 5}},
          {"wire.bits_down", "0, 4 or 8"});
  refused(kInvalid, {.wire = {.residual_dtype = DType::kFloat16}},
          {"wire.residual_dtype", "float16"});
  refused(kInvalid, {.communication_dtype = kFloat32, .wire = {.bits_up = 4}},
          {"communication_dtype", "wire.bits_up"});
  test::run_ranks("local", 2, [&](comm::Communicator& comm) {
    ZeroRun run(comm, two_groups(), test::adam_rule(),
                few_bits(2, kBFloat16, {.bits_up = 4}));
    test::expect_error(
        kInvalid, {"wire.residual_dtype", "float32 at stage 2", "bfloat16"},
        [&] { run.optimizer->gradients().begin({.is_last = false}); });
    run.backward(local(run, comm, 0));
    test::expect_error(
        kInvalid, {"loss_scale", "1 with wire.bits_up", "2"}, [&] {
          run.optimizer->step(
              {.params = run.params.view(), .grads = {}, .loss_scale = 2});
        });
    EXPECT_TRUE(run.optimizer->step().applied);
  });
}

}  // namespace
}  // namespace thinwire::zero::low_bit_steps_test
