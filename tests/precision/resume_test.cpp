// SPDX-License-Identifier: Apache-2.0
// Mixed precision saved after any call and continued elsewhere: the same bits,
// the loss scale's among them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <deque>

#include "optim/states.h"
#include "precision/support.h"
#include "support/errors.h"

namespace thinwire::precision::resume_test {
namespace {

using test::LowBitCase;
using test::Training;

class Resume : public ::testing::TestWithParam<test::TrainingCase> {};
INSTANTIATE_TEST_SUITE_P(
    All, Resume,
    ::testing::Combine(::testing::Values(1, 2, 3),
                       ::testing::Values(DType::kFloat16, DType::kBFloat16),
                       ::testing::ValuesIn(test::every_optimizer())),
    test::name_of_training);

TEST_P(Resume, ContinuesBitEqualFromEveryCall) {
  const auto& [world, dtype, tested] = GetParam();
  const ParameterLayout layout = test::grouped_layout();
  comm::run_local_ranks(world, [&, dtype = dtype,
                                &test_case = tested](auto& comm) {
    Training main(comm, layout, test_case.make, test::with_moving_scale(dtype));
    std::deque<Training> resumed;
    for (std::int64_t call = 1; call <= test_case.steps * 4 / 3; ++call) {
      // Another initial scale and other masters: the state brings its own.
      MixedPrecisionOptions other = test::with_moving_scale(dtype);
      other.loss_scale.initial_scale = 8;
      Training& latest =
          resumed.emplace_back(comm, layout, test_case.make, other);
      latest.optimizer->set_masters(std::vector<float>(layout.size(), 7.0f));
      latest.optimizer->load_state_dict(copy_of(main.optimizer->state()));
      latest.optimizer->write_params(latest.params.view());
      if (resumed.size() > 6) resumed.pop_front();

      const auto grads =
          test::gradient_that_overflows(layout, call, comm.rank());
      const bool applied = main.step(grads).applied;
      for (Training& run : resumed) {
        ASSERT_EQ(run.step(grads).applied, applied) << "call " << call;
        ASSERT_EQ(run.optimizer->loss_scale(), main.optimizer->loss_scale());
        ASSERT_EQ(run.optimizer->progress().phase,
                  main.optimizer->progress().phase);
        ASSERT_TRUE(test::same_bytes(run.params.view(), main.params.view()))
            << "call " << call;
        ASSERT_TRUE(test::same_state(copy_of(run.optimizer->state()),
                                     copy_of(main.optimizer->state())))
            << "call " << call;
      }
    }
    if (dtype == DType::kFloat16) {
      EXPECT_GT(main.optimizer->progress().skipped, 0);
    }
  });
}

void expect_refused(LowPrecisionOptimizer& optimizer, const StateDict& state,
                    std::string_view key) {
  const StateDict before = copy_of(optimizer.state());
  const double scale = optimizer.loss_scale();
  test::expect_error(ErrorCode::kCorruptCheckpoint, {key},
                     [&] { optimizer.load_state_dict(state); });
  EXPECT_TRUE(test::same_state(copy_of(optimizer.state()), before)) << key;
  EXPECT_EQ(optimizer.loss_scale(), scale);
}

TEST_P(Resume, AStateThatDoesNotFitChangesNothing) {
  const auto& [world, dtype, tested] = GetParam();
  const ParameterLayout layout = test::grouped_layout();
  // Their absence says something: nothing masked, nothing compressed yet.
  const std::set<std::string> optional = {
      "participation",       "worker_error",      "frozen",
      "exp_avg_sq",          "freeze_step",       "var_freeze_step",
      "var_update_scaler",   "local_step_scaler", "local_step_clipper",
      "variance_is_unbiased"};
  comm::run_local_ranks(world, [&, dtype = dtype,
                                &test_case = tested](auto& comm) {
    Training run(comm, layout, test_case.make, test::with_moving_scale(dtype));
    for (std::int64_t call = 1; call <= test_case.steps; ++call)
      (void)run.step(test::gradient_that_overflows(layout, call, comm.rank()));
    const StateDict good = copy_of(run.optimizer->state());
    Training fresh(comm, layout, test_case.make,
                   test::with_moving_scale(dtype));
    for (LowPrecisionOptimizer* to :
         {fresh.optimizer.get(), run.optimizer.get()}) {
      for (const auto& [key, value] : good.arrays()) {
        if (optional.count(key) != 0) continue;
        expect_refused(*to, test::without(good, key), key);
        StateDict wrong = test::without(good, key);
        wrong.put(key, std::vector<float>(value.size() + 1));
        expect_refused(*to, wrong, key);
        wrong.put(key, std::vector<std::int32_t>(value.size()));
        expect_refused(*to, wrong, key);
      }
      for (const auto& [key, value] : good.scalars())
        if (optional.count(key) == 0)
          expect_refused(*to, test::without(good, key), key);
      if (dtype != DType::kFloat16) continue;
      StateDict wrong = test::without(good, "");
      wrong.put_real("loss_scale", -1);
      expect_refused(*to, wrong, "loss scale");
    }
    fresh.optimizer->load_state_dict(good);
    EXPECT_TRUE(test::same_state(copy_of(fresh.optimizer->state()), good));
  });
}

TEST(ResumedSettings, Item70AreTheNewOnes) {
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    const ParameterLayout layout = ParameterLayout::of({{"p", {4}}});
    const auto make = [](double max_grad_norm) {
      return test::exact_adam({}, {.max_grad_norm = max_grad_norm});
    };
    MixedPrecisionOptions options;
    options.loss_scale.initial_scale = 1024;
    Training old(comm, layout, make(1), options);
    (void)old.step({1, 1, 1, 1});
    options.loss_scale.hysteresis = 1;
    Training resumed(comm, layout, make(0.5), options);
    resumed.optimizer->load_state_dict(copy_of(old.optimizer->state()));
    EXPECT_EQ(resumed.step({1, 1, 1, 1}).clip_factor, 0.25);
    EXPECT_FALSE(resumed.step({NAN, 1, 1, 1}).applied);
    EXPECT_EQ(resumed.optimizer->loss_scale(), 512);
  });
}

TEST(Masters, AreMadeOfWhatIsGivenAndOfNothingElse) {
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    const ParameterLayout layout = ParameterLayout::of({{"p", {3}}});
    Training run(comm, layout, test::exact_adam({}), {});
    const Buffer half =
        test::converted(std::vector<float>{1, 1.0f / 3, -2}, DType::kFloat16);
    run.optimizer->set_masters(half.view());
    EXPECT_TRUE(
        test::same_bytes(run.optimizer->masters(),
                         test::converted(half.view(), DType::kFloat32).view()));
    run.optimizer->write_params(run.params.view());
    EXPECT_TRUE(test::same_bytes(run.params.view(), half.view()));
    std::vector<float> four(4);
    test::expect_error(ErrorCode::kInvalidArgument, {"params", "3", "4"},
                       [&] { run.optimizer->set_masters(four); });
    EXPECT_TRUE(run.params_are_rounded_masters());
  });
}

// Nothing has been exchanged when the argument is found wrong.
TEST(Masters, AreSynchronizedToParametersThatFitOnly) {
  const ParameterLayout layout = test::grouped_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Training run(comm, layout, test::zero_one_adam(test::short_zero_one_adam()),
                 test::with_static_scale(DType::kFloat16));
    for (std::int64_t t = 1; t <= 17; ++t)
      (void)run.step(test::grid_gradient(layout, t, comm.rank()));
    ASSERT_EQ(run.optimizer->progress().phase, optim::Phase::kLocal);
    const StateDict before = copy_of(run.optimizer->state());
    Buffer longer(layout.size() + 1, DType::kFloat16);
    Buffer other(layout.size(), DType::kBFloat16);
    for (Buffer* wrong : {&longer, &other}) {
      test::expect_error(ErrorCode::kInvalidArgument, {"params"}, [&] {
        optim::synchronize(*run.optimizer, wrong->view());
      });
      EXPECT_TRUE(test::same_state(copy_of(run.optimizer->state()), before));
    }
    test::expect_error(ErrorCode::kInvalidArgument, {"params"},
                       [&] { run.optimizer->write_params(other.view()); });
  });
}

}  // namespace
}  // namespace thinwire::precision::resume_test
