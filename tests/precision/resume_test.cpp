// SPDX-License-Identifier: Apache-2.0
// Mixed precision saved after any call and continued elsewhere, also from other
// precision: the same bits, the loss scale's among them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <deque>

#include "optim/other_ranks.h"
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
    ::testing::Combine(::testing::Values(1, 3),
                       ::testing::Values(DType::kFloat16, DType::kBFloat16),
                       ::testing::ValuesIn(test::every_optimizer())),
    test::name_of_training);

TEST_P(Resume, ContinuesBitEqualFromEveryCall) {
  const auto& [world, dtype, tested] = GetParam();
  const ParameterLayout layout = test::grouped_layout();
  std::vector<test::Saved> saved(static_cast<std::size_t>(world));
  comm::run_local_ranks(world, [&, dtype = dtype,
                                &test_case = tested](auto& comm) {
    Training main(comm, layout, test_case.make, test::with_moving_scale(dtype));
    std::deque<Training> resumed;
    bool was_behind = false;
    for (std::int64_t call = 1; call <= test_case.steps * 4 / 3; ++call) {
      // Another initial scale and other masters: the state brings its own.
      MixedPrecisionOptions other = test::with_moving_scale(dtype);
      other.loss_scale.initial_scale = 8;
      const auto begun = [&]() -> Training& {
        Training& run =
            resumed.emplace_back(comm, layout, test_case.make, other);
        run.optimizer->set_masters(std::vector<float>(layout.size(), 7.0f));
        return run;
      };
      Training& loaded = begun();
      loaded.optimizer->load_state_dict(copy_of(main.optimizer->state()));
      loaded.optimizer->write_params(loaded.params.view());

      // As a checkpoint does: from the weights of the last exchange, which are
      // equal on all ranks.
      const optim::Optimizer& optimizer = *main.optimizer;
      comm.barrier();
      saved[static_cast<std::size_t>(comm.rank())] = test::save(optimizer);
      comm.barrier();
      Training& adopted = begun();
      test::adopt(comm, *adopted.optimizer, saved);
      Buffer weights = test::converted(
          optim::exchanged_params(optimizer, main.params.view()), dtype);
      Buffer first = test::copied(weights.view());
      comm.broadcast(first.view(), 0);
      EXPECT_TRUE(test::same_bytes(weights.view(), first.view()));
      was_behind = was_behind || optim::steps_behind(optimizer) > 0;
      adopted.params = std::move(weights);
      adopted.optimizer->local_steps()->repeat(adopted.params.view());
      EXPECT_TRUE(test::same_bytes(adopted.params.view(), main.params.view()))
          << "before call " << call;
      EXPECT_TRUE(test::same_bytes(adopted.optimizer->masters(),
                                   main.optimizer->masters()));
      while (resumed.size() > 12) resumed.pop_front();

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
    EXPECT_EQ(was_behind, test_case.name == "zero_one_adam");
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
      "last_loss_scale",   "participation",     "worker_error",
      "exp_avg_sq",        "freeze_step",       "var_freeze_step",
      "var_update_scaler", "local_step_scaler", "local_step_clipper"};
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

TEST(Masters, AreMadeOnlyFromTheGivenParameters) {
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
    test::expect_invalid({"params", "3", "4"},
                         [&] { run.optimizer->set_masters(four); });
    EXPECT_TRUE(run.params_are_rounded_masters());
  });
}

// Nothing has been exchanged when the argument is found wrong.
TEST(Masters, AreSynchronizedOnlyToParametersThatFit) {
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
      test::expect_invalid({"params"}, [&] {
        optim::synchronize(*run.optimizer, wrong->view());
      });
      EXPECT_TRUE(test::same_state(copy_of(run.optimizer->state()), before));
    }
    test::expect_invalid({"params"},
                         [&] { run.optimizer->write_params(other.view()); });
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
        test::expect_error(kCorrupt, {"masters"}, [&] {
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

TEST(AdoptLossScale, IsKeptOnlyFromFp16ToFp16) {
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
}  // namespace thinwire::precision::resume_test
