// SPDX-License-Identifier: Apache-2.0
// What few bits promise of a run: replicas stay near their masters, and a
// skipped step does what its options say.
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

TEST(LowBitSteps, ReplicasStayEqualAndNearTheirMasters) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr unsigned kSteps = 300;
#else
  constexpr unsigned kSteps = 3'000;
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

TEST(LowBitSteps, RefusesImpossibleOptions) {
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
