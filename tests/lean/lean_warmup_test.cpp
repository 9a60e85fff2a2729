// SPDX-License-Identifier: Apache-2.0
// Lean 1-bit Adam whose exact steps send 4 or 8 bits each way.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "lean/lean_plain.h"
#include "lean/lean_support.h"
#include "support/errors.h"
#include "support/same_bits.h"
#include "thinwire/zero/whole_values.h"

namespace thinwire::lean::lean_warmup_test {
namespace {

using test::LeanRun;
using Options = LeanOnebitAdamOptions;

constexpr std::int64_t kFreeze = 5;

Options options_of(int bits, double max_grad_norm = 0.5) {
  return {.learning_rate = 0.01,
          .freeze = {.step = kFreeze, .warmup_bits = bits},
          .compression = {.exchange = {.max_grad_norm = max_grad_norm,
                                       .bucket_elements = 2048}}};
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
    twin.optimizer->step(twin.params.view(), same);
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
  std::vector<float> masters;
  for (const Parameter& p : layout.parameters()) {
    const auto values = twin.optimizer->whole_values().parameter(p.name);
    masters.insert(masters.end(), values.begin(), values.end());
  }
  EXPECT_TRUE(test::same_bits<float>(run.full(), masters));
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

TEST(LeanWarmup, IsLowBitZeroAndHandsOverWhatItHas) {
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

TEST(LeanWarmupBytes, AreAnEighthOrAQuarter) {
  const ParameterLayout layout = ParameterLayout::of({{"w", {64, 1024}}});
  for (const auto& [bits, most] : {std::pair(4, 0.13), {8, 0.26}}) {
    std::atomic<std::uint64_t> low{0}, exact{0};
    test::run_ranks("local", 4, [&, bits = bits](comm::Communicator& comm) {
      LeanRun few(comm, layout, DType::kFloat32, options_of(bits));
      LeanRun all(comm, layout, DType::kFloat32, options_of(0));
      const auto own = test::gradient(layout.size(), 1, comm.rank());
      low += few.step(own).bytes_sent;
      exact += all.step(own).bytes_sent;
    });
    EXPECT_LT(static_cast<double>(low), most * static_cast<double>(exact));
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

TEST(LeanWarmupErrors, NameALossScale) {
  const ParameterLayout layout = test::small_layout();
  test::run_ranks("local", 2, [&](comm::Communicator& comm) {
    LeanRun run(comm, layout, DType::kFloat32, options_of(4));
    auto own = grads(layout, 1, comm.rank());
    test::expect_error(
        ErrorCode::kInvalidArgument,
        {"loss_scale must be 1 in a warm-up over few bits"}, [&] {
          run.optimizer->step(
              {.params = run.params.view(), .grads = own, .loss_scale = 2});
        });
  });
}

}  // namespace
}  // namespace thinwire::lean::lean_warmup_test
