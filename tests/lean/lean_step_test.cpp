// SPDX-License-Identifier: Apache-2.0
// Steps of lean 1-bit Adam: what they keep and refuse. What they send, hold,
// skip and reduce early is in lean_hosts_test.cpp. Exact steps that send 4 or 8
// bits each way.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lean/lean_plain.h"
#include "lean/lean_support.h"
#include "optim/support.h"
#include "support/errors.h"
#include "support/same_bits.h"

namespace thinwire::lean::lean_step_test {
namespace {

using test::LeanRun;
using Options = LeanOnebitAdamOptions;

constexpr DType kB16 = DType::kBFloat16;

std::vector<float> grads(const LeanRun& run, std::int64_t t, int rank) {
  return test::gradient(run.layout.size(), t, rank);
}

TEST(LeanSteps, VerificationSeesLowerBits) {
  test::run_ranks("local", 2, [&](comm::Communicator& comm) {
    Options o{.learning_rate = 0, .freeze = {.step = 1}};
    o.compression.exchange.verify_every = 3;
    LeanRun run(comm, test::small_layout(), kB16, o);
    for (std::int64_t t = 1; t <= 2; ++t) run.step(grads(run, t, comm.rank()));
    std::vector<float> values = run.optimizer->full_parameter("three");
    const auto params = run.values();
    if (comm.rank() == 1) values[1] = std::nextafter(values[1], 0.0f);
    run.optimizer->set_full_parameter("three", values);
    EXPECT_TRUE(test::same_bits<float>(run.values(), params));
    EXPECT_EQ(run.optimizer->full_parameter("three"), values);
    test::expect_error(ErrorCode::kCommFailure, {"verification failed"},
                       [&] { run.step(grads(run, 3, comm.rank())); });
  });
}

TEST(LeanSteps, FullValuesAreSetAndReadInBothStages) {
  test::run_ranks("local", 2, [&](comm::Communicator& comm) {
    LeanRun run(comm, test::small_layout(), kB16, {.freeze = {.step = 2}});
    const std::vector<float> values = {1.2345678f, -0x1.8p-130f, 3e38f};
    for (std::int64_t t = 1; t <= 3; ++t) {
      run.optimizer->set_full_parameter("three", values);
      EXPECT_EQ(run.optimizer->full_parameter("three"), values);
      run.step(grads(run, t, comm.rank()));
    }
    const auto all = test::normal(run.layout.size(), 9);
    run.optimizer->set_masters(ConstView(all));
    EXPECT_TRUE(test::same_bits<float>(run.full(), all));
    test::expect_invalid({"no parameter 'tree'"},
                         [&] { (void)run.optimizer->full_parameter("tree"); });
    test::expect_invalid({"values"}, [&] {
      run.optimizer->set_full_parameter("three", std::vector<float>(2));
    });
  });
}

TEST(LeanSteps, RefuseUnfitArguments) {
  test::run_ranks("local", 2, [&](comm::Communicator& comm) {
    const ParameterLayout layout = test::small_layout();
    const auto refused = [&](std::string_view text, DType dtype, Options o) {
      test::expect_invalid({text}, [&] { LeanRun(comm, layout, dtype, o); });
    };
    refused("float32 or bfloat16, got float16", DType::kFloat16, {});
    refused("denominator_bits must be 8 or 4", kB16, {.denominator_bits = 2});
    refused("freeze_step", kB16, {.freeze = {.step = 0}});
    refused("denominator_bits", kB16,
            {.denominator_bits = comm.rank() == 0 ? 4 : 8});
    LeanRun few(comm, layout, kB16, {.freeze = {.step = 5, .warmup_bits = 4}});
    auto grads_of_1 = grads(few, 1, comm.rank());
    test::expect_invalid({"loss_scale must be 1 in a warm-up over few bits"},
                         [&] {
                           few.optimizer->step({.params = few.params.view(),
                                                .grads = grads_of_1,
                                                .loss_scale = 2});
                         });
    LeanRun run(comm, layout, kB16, {.freeze = {.step = 1}});
    for (int stage = 0; stage < 2; ++stage) {
      auto own = grads(run, 1, comm.rank());
      Buffer other(layout.size(), kB16);
      test::expect_invalid({"the memory given at construction"},
                           [&] { run.optimizer->step(other.view(), own); });
      own.pop_back();
      test::expect_invalid(
          {"grads"}, [&] { run.optimizer->step(run.params.view(), own); });
      run.step(grads(run, 1, comm.rank()));
    }
  });
}

// ---- warm-ups that send 4 or 8 bits each way

constexpr std::int64_t kFreeze = 5;

Options options_of(int bits) {
  return {.learning_rate = 0.01,
          .freeze = {.step = kFreeze, .warmup_bits = bits},
          .compression = {
              .exchange = {.max_grad_norm = 0.5, .bucket_elements = 2048}}};
}

std::vector<float> grads(const ParameterLayout& layout, std::int64_t t,
                         int rank) {
  return test::gradient_with_gaps(layout, t, rank);
}

std::vector<float> array_of(const optim::State& state, const char* name) {
  const optim::StateArray& array = *state.find(name);
  Buffer values(array.size, array.dtype);
  array.read({0, array.size}, values.view());
  return test::floats_of(values.view());
}

// ZeRO-1 with the same wire, until the freeze.
test::ZeroRun twin_of(comm::Communicator& comm, const ParameterLayout& layout,
                      DType dtype, const Options& o) {
  const int bits = *o.freeze.warmup_bits;
  return test::ZeroRun(comm, layout,
                       test::adam_rule({.learning_rate = o.learning_rate}),
                       {.dtype = dtype,
                        .exchange = o.compression.exchange,
                        .wire = {.bits_up = bits, .bits_down = bits}});
}

// ZeRO-1's steps, and at the freeze its masters and its residuals.
void expect_zeros_steps(comm::Communicator& comm, DType dtype, int bits) {
  const Options o = options_of(bits);
  const ParameterLayout layout = test::awkward_layout();
  LeanRun run(comm, layout, dtype, o);
  test::ZeroRun twin = twin_of(comm, layout, dtype, o);
  for (std::int64_t t = 1; t < kFreeze; ++t) {
    const auto own = grads(layout, t, comm.rank());
    const auto report = run.step(own);
    auto same = own;
    const auto of_zero = twin.optimizer->step(twin.params.view(), same);
    // And an agreement.
    EXPECT_GE(report.bytes_sent, of_zero.bytes_sent);
    EXPECT_LE(report.bytes_sent, of_zero.bytes_sent + 128);
    EXPECT_EQ(report.phase, optim::Phase::kExact);
    EXPECT_EQ(report.bits, bits);
    EXPECT_TRUE(test::same_bits<float>(run.values(), twin.values())) << t;
    EXPECT_TRUE(test::same_bits<float>(
        array_of(run.optimizer->state(), "worker_error"),
        array_of(twin.optimizer->state(), "worker_error")));
  }
  const auto own = grads(layout, kFreeze, comm.rank());
  const auto report = run.step(own);
  auto same = own;
  twin.optimizer->step(twin.params.view(), same);
  EXPECT_EQ(run.optimizer->progress().phase, optim::Phase::kCompressed);
  // Parameters are what the owners had.
  EXPECT_TRUE(test::same_bits<float>(run.full(), twin.masters()));
  // Residuals are (1 - beta1) clip times as large, or 0.
  const auto before = array_of(twin.optimizer->state(), "worker_error");
  const auto after = array_of(run.optimizer->state(), "worker_error");
  ASSERT_EQ(before.size(), after.size());
  const auto weight = static_cast<float>((1 - 0.9) * report.clip_factor);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (after[i] == 0) continue;
    ++kept;
    EXPECT_EQ(after[i], to_float(to_bfloat16(weight * before[i]))) << i;
  }
  // With many ranks a rank may encode nothing.
  EXPECT_GE(kept, after.size() / 2);
  for (std::int64_t t = kFreeze + 1; t <= kFreeze + 3; ++t)
    EXPECT_TRUE(run.step(grads(layout, t, comm.rank())).applied);
}

TEST(LeanWarmup, EqualsLowBitZeroAndPassesOnItsState) {
  for (const test::LeanRanks& ranks :
       {test::LeanRanks{2}, test::LeanRanks{3}, test::LeanRanks{4},
        test::LeanRanks{4, 2}, test::LeanRanks{8, 4},
        test::LeanRanks{6, 2, test::Placing::kRoundRobin}})
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
      for (const int bits : {4, 8}) {
        if (bits == 8 && ranks.per_host > 1) continue;
        test::run_lean_ranks(ranks, [&](comm::Communicator& comm) {
          expect_zeros_steps(comm, dtype, bits);
        });
      }
}

TEST(LeanWarmupSkips, ClearResidualsOnAllRanks) {
  const ParameterLayout layout = test::small_layout();
  test::run_ranks("local", 3, [&](comm::Communicator& comm) {
    LeanRun run(comm, layout, DType::kFloat32, options_of(4));
    run.step(grads(layout, 1, comm.rank()));
    const auto before = run.full();
    auto bad = grads(layout, 2, comm.rank());
    if (comm.rank() == 1) bad[7] = std::numeric_limits<float>::infinity();
    run.optimizer->early()->reduce(bad, run.optimizer->early()->buckets()[0]);
    const auto report = run.optimizer->step(run.params.view(), bad);
    EXPECT_FALSE(report.applied);
    EXPECT_TRUE(report.residuals_cleared);
    EXPECT_TRUE(test::same_bits<float>(run.full(), before));
    EXPECT_TRUE(run.step(grads(layout, 3, comm.rank())).applied);
  });
}

}  // namespace
}  // namespace thinwire::lean::lean_step_test
