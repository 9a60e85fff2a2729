// SPDX-License-Identifier: Apache-2.0
// States adopted around 16-bit parameters: weights of the last exchange, local
// steps repeated, and other precision than they were saved in.
#include <gtest/gtest.h>

#include <deque>

#include "optim/other_ranks.h"
#include "optim/states.h"
#include "precision/support.h"
#include "support/errors.h"

namespace thinwire::precision::adopt_test {
namespace {

using test::expect_error;
using test::LowBitCase;
using test::Saved;
using test::Training;

class Adopt : public ::testing::TestWithParam<test::TrainingCase> {};
INSTANTIATE_TEST_SUITE_P(
    All, Adopt,
    ::testing::Combine(::testing::Values(1, 2, 3),
                       ::testing::Values(DType::kFloat16, DType::kBFloat16),
                       ::testing::ValuesIn(test::every_optimizer())),
    test::name_of_training);

TEST_P(Adopt, GoesOnBitEqualFromTheWeightsOfTheLastExchange) {
  const auto& [world, dtype, tested] = GetParam();
  const ParameterLayout layout = test::grouped_layout();
  std::vector<Saved> saved(static_cast<std::size_t>(world));
  comm::run_local_ranks(world, [&, dtype = dtype,
                                &test_case = tested](auto& comm) {
    Training main(comm, layout, test_case.make, test::with_moving_scale(dtype));
    std::deque<Training> resumed;
    bool was_behind = false;
    for (std::int64_t call = 1; call <= test_case.steps * 4 / 3; ++call) {
      const optim::Optimizer& optimizer = *main.optimizer;
      comm.barrier();
      saved[static_cast<std::size_t>(comm.rank())] = test::save(optimizer);
      comm.barrier();
      Training& latest = resumed.emplace_back(comm, layout, test_case.make,
                                              test::with_moving_scale(dtype));
      latest.optimizer->set_masters(std::vector<float>(layout.size(), 7.0f));
      test::adopt(comm, *latest.optimizer, saved);
      // Equal on all ranks, as weights of a checkpoint must be.
      Buffer weights = test::converted(
          optim::exchanged_params(optimizer, main.params.view()), dtype);
      Buffer first = test::copied(weights.view());
      comm.broadcast(first.view(), 0);
      EXPECT_TRUE(test::same_bytes(weights.view(), first.view()));
      was_behind = was_behind || optim::steps_behind(optimizer) > 0;
      latest.params = std::move(weights);
      latest.optimizer->local_steps()->repeat(latest.params.view());
      EXPECT_TRUE(test::same_bytes(latest.params.view(), main.params.view()))
          << "before call " << call;
      EXPECT_TRUE(test::same_bytes(latest.optimizer->masters(),
                                   main.optimizer->masters()));
      if (resumed.size() > 5) resumed.pop_front();
      const auto grads =
          test::gradient_that_overflows(layout, call, comm.rank());
      (void)main.step(grads);
      for (Training& run : resumed) {
        (void)run.step(grads);
        ASSERT_TRUE(test::same_bytes(run.params.view(), main.params.view()))
            << "call " << call;
        ASSERT_EQ(run.optimizer->loss_scale(), main.optimizer->loss_scale());
      }
    }
    EXPECT_EQ(was_behind, test_case.name == "zero_one_adam");
  });
}

// ---- other precision

constexpr auto kCorrupt = ErrorCode::kCorruptCheckpoint;

TEST(AdoptMasters, ComeFromFp32ParametersWithANewLossScale) {
  const ParameterLayout layout = test::grouped_layout();
  for (const LowBitCase& tested : test::every_optimizer())
    comm::run_local_ranks(1, [&](comm::Communicator& comm) {
      const auto wide = tested.make(comm, layout);
      std::vector<float> params = test::normal(layout.size(), 3);
      for (std::int64_t t = 1; t <= 5; ++t) {
        auto grads = test::gradient_with_gaps(layout, t, 0);
        wide->step(params, grads);
      }
      for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
        Training run(comm, layout, tested.make, test::with_moving_scale(dtype));
        StateDict state = copy_of(wide->state());
        expect_error(kCorrupt, {"masters"}, [&] {
          static_cast<void>(run.optimizer->adopt(copy_of(wide->state())));
        });
        state.put("masters", params);
        run.optimizer->adopt(std::move(state))();
        run.optimizer->local_steps()->repeat(run.params.view());
        EXPECT_TRUE(test::same_bytes(run.optimizer->masters(), params));
        EXPECT_TRUE(run.params_are_rounded_masters());
        EXPECT_EQ(run.optimizer->loss_scale(),
                  dtype == DType::kFloat16 ? 4096 : 1);
        // And back: the fp32 optimizer needs nothing else.
        const auto back = tested.make(comm, layout);
        back->adopt(copy_of(run.optimizer->state()))();
        EXPECT_TRUE(
            test::same_state(copy_of(back->state()), copy_of(wide->state())))
            << tested.name;
      }
    });
}

TEST(AdoptLossScale, IsKeptFromFp16ToFp16Only) {
  const ParameterLayout layout = test::grouped_layout();
  const auto make = test::exact_adam({.learning_rate = 0.01});
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    Training half(comm, layout, make, test::with_moving_scale(DType::kFloat16));
    for (std::int64_t call = 1; call <= 5; ++call)
      (void)half.step(test::gradient_that_overflows(layout, call, 0));
    ASSERT_NE(half.optimizer->loss_scale(), 4096);
    Training brain(comm, layout, make,
                   test::with_moving_scale(DType::kBFloat16));
    brain.optimizer->adopt(copy_of(half.optimizer->state()))();
    EXPECT_EQ(brain.optimizer->loss_scale(), 1);
    EXPECT_FALSE(copy_of(brain.optimizer->state()).has_scalar("loss_scale"));
    Training again(comm, layout, make,
                   test::with_moving_scale(DType::kFloat16));
    again.optimizer->adopt(copy_of(half.optimizer->state()))();
    EXPECT_EQ(again.optimizer->loss_scale(), half.optimizer->loss_scale());
    again.optimizer->adopt(copy_of(brain.optimizer->state()))();
    EXPECT_EQ(again.optimizer->loss_scale(), 4096);
    EXPECT_TRUE(test::same_bytes(again.optimizer->masters(),
                                 half.optimizer->masters()));
  });
}

}  // namespace
}  // namespace thinwire::precision::adopt_test
