// SPDX-License-Identifier: Apache-2.0
// Residuals and replicas in states: of the same ranks, of others, and of ZeRO
// without them.
#include <gtest/gtest.h>

#include "optim/other_ranks.h"
#include "optim/states.h"
#include "zero/support.h"

namespace thinwire::zero::low_bit_state_test {
namespace {

using test::Saved;
using test::train_with_overflows;
using test::two_groups;
using test::ZeroRun;

ZeroOptions few_bits(int stage, DType dtype, AfterSkip after) {
  return {.stage = stage,
          .dtype = dtype,
          .loss_scale = {.initial_scale = 64, .window = 2, .hysteresis = 2},
          .exchange = {.max_grad_norm = 20, .bucket_elements = 2048},
          .wire = {.bits_up = 4,
                   .bits_down = 4,
                   .residual_dtype = DType::kFloat32,
                   .after_skip = after}};
}

struct Checkpoint {
  std::vector<Saved> states;
  std::vector<float> params;
  std::vector<float> masters;
  std::vector<double> residual;  // the ranks' mean
};

Checkpoint saved_by(int world, DType dtype) {
  Checkpoint made{
      std::vector<Saved>(static_cast<std::size_t>(world)), {}, {}, {}};
  test::run_ranks("local", world, [&](comm::Communicator& comm) {
    ZeroRun run(comm, two_groups(), test::adam_rule(),
                few_bits(2, dtype, AfterSkip::kKeep));
    train_with_overflows(comm, run, 0, 2);
    made.states[static_cast<std::size_t>(comm.rank())] =
        test::save(*run.optimizer);
    const auto masters = run.masters();
    const StateDict state = copy_of(run.optimizer->state());
    const auto own = test::floats_of(state.array("worker_error"));
    std::vector<double> sum(own.begin(), own.end());
    comm.all_reduce(sum);
    if (comm.rank() != 0) return;
    made.params = run.values();
    made.masters = masters;
    for (const double e : sum) made.residual.push_back(e / world);
  });
  return made;
}

void adopt(comm::Communicator& comm, ZeroRun& run, const Checkpoint& from) {
  kernels::convert(from.params, run.params.view());
  StateDict state = test::OtherRanks(from.states, comm.rank(), comm.size())
                        .state_for(run.optimizer->state());
  run.optimizer->adopt(std::move(state))();
}

// A group of one keeps nothing back: its first gradient that counts is longer.
TEST(LowBitState, AGroupOfOnePaysWhatOthersKeptBack) {
  const Checkpoint from = saved_by(3, DType::kFloat32);
  test::run_ranks("local", 1, [&](comm::Communicator& comm) {
    ZeroRun run(comm, two_groups(), test::adam_rule(),
                few_bits(2, DType::kFloat32, AfterSkip::kAuto));
    adopt(comm, run, from);
    EXPECT_EQ(run.masters(), from.masters);
    const std::size_t n = run.layout.size();
    // They are still there after a skipped step, and in a state.
    EXPECT_FALSE(run.step(std::vector<float>(n, INFINITY)).applied);
    run.optimizer->load_state_dict(copy_of(run.optimizer->state()));
    const auto grads = test::normal(n, 1);
    run.backward(grads);
    const auto paid = run.gradient();
    for (std::size_t i = 0; i < n; ++i)
      EXPECT_NEAR(paid[i], grads[i] + from.residual[i], 1e-6);
    EXPECT_EQ(run.gradient(), paid);
    EXPECT_TRUE(run.optimizer->step().applied);
    run.backward(grads);
    EXPECT_EQ(run.gradient(), grads);
    run.optimizer->step();
    EXPECT_FALSE(copy_of(run.optimizer->state()).has_array("worker_error"));
  });
}

// fp32 parameters were their own masters; residuals begin at 0.
TEST(LowBitState, TakesStatesOfExactZeroAndGivesThemBack) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    test::run_ranks("local", 2, [&](comm::Communicator& comm) {
      ZeroOptions exact = few_bits(1, dtype, AfterSkip::kAuto);
      exact.wire = {};
      ZeroRun from(comm, two_groups(), test::adam_rule(), exact);
      train_with_overflows(comm, from, 0, 2);
      ZeroRun run(comm, two_groups(), test::adam_rule(),
                  few_bits(1, dtype, AfterSkip::kAuto));
      train_with_overflows(comm, run, 3, 5);
      kernels::convert(from.params.view(), run.params.view());
      run.optimizer->load_state_dict(copy_of(from.optimizer->state()));
      EXPECT_EQ(run.values(), from.values());
      EXPECT_EQ(run.masters(), from.masters());
      const StateDict state = copy_of(run.optimizer->state());
      for (const float e : test::floats_of(state.array("worker_error")))
        EXPECT_EQ(e, 0);
      train_with_overflows(comm, run, 3, 5);
      const auto masters = run.masters();
      from.optimizer->load_state_dict(copy_of(run.optimizer->state()));
      if (dtype == DType::kBFloat16) {
        EXPECT_EQ(from.masters(), masters);
      }
      EXPECT_EQ(from.optimizer->progress().steps, 4);
    });
}

TEST(LowBitState, SettingAndReadingMastersSetsReplicas) {
  test::run_ranks("local", 3, [&](comm::Communicator& comm) {
    ZeroRun run(comm, two_groups(), test::adam_rule(),
                few_bits(1, DType::kBFloat16, AfterSkip::kAuto));
    train_with_overflows(comm, run, 0, 2);
    const auto values = test::normal(1500, 77);
    run.optimizer->whole_values().set_parameter("first", values);
    EXPECT_EQ(run.optimizer->whole_values().parameter("first"), values);
    const auto rounded =
        test::floats_of(test::rounded(values, DType::kBFloat16).view());
    const auto replicas = run.values();
    EXPECT_TRUE(std::equal(rounded.begin(), rounded.end(), replicas.begin()));
    const auto all = test::normal(run.layout.size(), 78);
    run.optimizer->set_masters(all);
    EXPECT_EQ(run.masters(), all);
    EXPECT_EQ(run.values(),
              test::floats_of(test::rounded(all, DType::kBFloat16).view()));
  });
}

}  // namespace
}  // namespace thinwire::zero::low_bit_state_test
