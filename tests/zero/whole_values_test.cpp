// SPDX-License-Identifier: Apache-2.0
// Parameters, states and gradients read and set in full, whoever owns them.
#include <gtest/gtest.h>

#include "optim/states.h"
#include "support/errors.h"
#include "support/sanitizers.h"
#include "zero/support.h"

namespace thinwire::zero::whole_values_test {
namespace {

using test::two_groups;
using test::unscaled;
using test::ZeroRun;

void for_all(const std::function<void(comm::Communicator&, int, DType)>& body) {
  for (const int world : test::fewer_if_sanitized<int>({2, 1, 3, 4}, 1))
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
      test::run_ranks("local", world, [&](comm::Communicator& comm) {
        for (const int stage : {1, 2}) {
          SCOPED_TRACE(stage);
          body(comm, stage, dtype);
        }
      });
}

TEST(ZeroWholeValues, ParametersAreSetWithTheirMasters) {
  for_all([](comm::Communicator& comm, int stage, DType dtype) {
    ZeroRun run(comm, two_groups(), test::adam_rule(), unscaled(stage, dtype));
    std::vector<float> want = run.start;
    unsigned seed = 40;
    for (const Parameter& p : run.layout.parameters()) {
      const auto values = test::normal(p.size, ++seed);
      run.optimizer->whole_values().set_parameter(p.name, values);
      EXPECT_EQ(run.optimizer->whole_values().parameter(p.name), values);
      std::copy(values.begin(), values.end(),
                want.begin() + static_cast<std::ptrdiff_t>(p.offset));
      EXPECT_EQ(run.masters(), want);
    }
    EXPECT_TRUE(
        test::same_bytes(run.params.view(), test::rounded(want, dtype).view()));
    // A step begins there.
    run.step(std::vector<float>(run.layout.size()));
    EXPECT_EQ(run.masters(), want);
  });
}

TEST(ZeroWholeValues, StatesAreSetByName) {
  for_all([](comm::Communicator& comm, int stage, DType dtype) {
    ZeroRun run(comm, two_groups(),
                test::adam_rule({.beta1 = 0.5, .beta2 = 0.5}),
                unscaled(stage, dtype));
    unsigned seed = 40;
    for (const Parameter& p : run.layout.parameters())
      for (const char* key : {"exp_avg", "exp_avg_sq"}) {
        const auto values = test::positive(p.size, ++seed);
        run.optimizer->whole_values().set_state(p.name, key, values);
        EXPECT_EQ(run.optimizer->whole_values().state(p.name, key), values);
      }
    auto exp_avg = run.state("exp_avg");
    auto exp_avg_sq = run.state("exp_avg_sq");
    run.step(std::vector<float>(run.layout.size()));
    for (float& value : exp_avg) value /= 2;
    for (float& value : exp_avg_sq) value /= 2;
    EXPECT_EQ(run.state("exp_avg"), exp_avg);
    EXPECT_EQ(run.state("exp_avg_sq"), exp_avg_sq);
  });
}

TEST(ZeroWholeValues, GradientsAreThoseOfTheNextStepBeforeClipping) {
  for_all([](comm::Communicator& comm, int stage, DType dtype) {
    ZeroOptions options = unscaled(stage, dtype);
    options.loss_scale.initial_scale = 512;
    for (const double most : {0.0, 1.0}) {
      options.exchange.max_grad_norm = most;
      ZeroRun run(comm, two_groups(), test::seeing_gradients(), options);
      ZeroRun unread(comm, two_groups(), test::seeing_gradients(), options);
      for (const std::size_t backwards : {1u, 3u}) {
        const std::vector<float> ones(
            run.layout.size(), static_cast<float>(comm.rank() == 0 ? 1 : 3));
        const double mean = (1 + 3.0 * (comm.size() - 1)) / comm.size();
        run.window({ones});  // another one before
        for (std::size_t k = 0; k < backwards; ++k)
          run.backward(ones,
                       {.is_first = k == 0, .is_last = k + 1 == backwards});
        const auto seen = run.gradient();
        for (const float value : seen)
          ASSERT_NEAR(value, static_cast<double>(backwards) * mean,
                      dtype == DType::kFloat32 ? 1e-6 : 0.03);
        EXPECT_EQ(run.gradient(), seen);  // reading changes nothing
        const auto report = run.optimizer->step();
        EXPECT_EQ(report.clip_factor<1, most> 0);
        const auto used = run.state("exp_avg");
        // The rule multiplies by clip_factor / (scale * ranks), rounded to a
        // float.
        for (std::size_t i = 0; i < seen.size(); ++i)
          ASSERT_FLOAT_EQ(used[i],
                          seen[i] * static_cast<float>(report.clip_factor));
        unread.window({ones});
        unread.window(std::vector<std::vector<float>>(backwards, ones));
        EXPECT_EQ(unread.values(), run.values());
      }
    }
  });
}

TEST(ZeroWholeValues, WholeGradientsAreReadInPlace) {
  for_all([](comm::Communicator& comm, int stage, DType dtype) {
    if (stage == 2) return;  // it keeps no whole ones
    ZeroRun run(comm, two_groups(), test::seeing_gradients(),
                unscaled(stage, dtype));
    ZeroRun one_by_one(comm, two_groups(), test::seeing_gradients(),
                       unscaled(stage, dtype));
    for (unsigned t = 0; t < 2; ++t) {
      const auto values = test::normal(
          run.layout.size(), 10 * t + static_cast<unsigned>(comm.rank()));
      Buffer grads = run.scaled(values, dtype);
      run.optimizer->early()->reduce(grads.view(),
                                     run.optimizer->gradients().buckets()[1]);
      one_by_one.backward(values);
      for (const Parameter& p : run.layout.parameters())
        EXPECT_EQ(run.optimizer->whole_values().gradient(p.name, grads.view()),
                  one_by_one.optimizer->whole_values().gradient(p.name));
      run.optimizer->step(run.params.view(), grads.view());
      one_by_one.optimizer->step();
      EXPECT_EQ(run.values(), one_by_one.values());
    }
  });
}

TEST(ZeroWholeValues, GradientsAreSetBeforeTheStep) {
  for_all([](comm::Communicator& comm, int stage, DType dtype) {
    ZeroOptions options = unscaled(stage, dtype);
    options.loss_scale.initial_scale = 256;
    ZeroRun run(comm, two_groups(), test::seeing_gradients(), options);
    const std::vector<float> nothing(run.layout.size());
    for (const std::size_t backwards : {1u, 2u}) {
      for (std::size_t k = 0; k < backwards; ++k)
        run.backward(nothing,
                     {.is_first = k == 0, .is_last = k + 1 == backwards});
      for (const Parameter& p : run.layout.parameters())
        run.optimizer->whole_values().set_gradient(
            p.name, std::vector<float>(p.size, p.group == 0 ? 0.5f : 2.0f));
      const auto report = run.optimizer->step();
      EXPECT_TRUE(report.applied);
      for (const Parameter& p : run.layout.parameters())
        for (const float value :
             run.optimizer->whole_values().state(p.name, "exp_avg"))
          ASSERT_FLOAT_EQ(value, p.group == 0 ? 0.5f : 2.0f);
    }
  });
}

TEST(ZeroWholeValues, MastersKeepTheirInitialValuesUntilTheyAreSet) {
  for_all([](comm::Communicator& comm, int stage, DType dtype) {
    ZeroRun run(comm, two_groups(), test::adam_rule(), unscaled(stage, dtype));
    EXPECT_EQ(run.masters(), run.start);
    const auto loaded = test::normal(run.layout.size(), 60);
    kernels::convert(loaded, run.params.view());
    const bool is_its_own = dtype == DType::kFloat32;
    EXPECT_EQ(run.masters(), is_its_own ? loaded : run.start);
    run.optimizer->set_masters(run.params.view());
    EXPECT_EQ(run.masters(), run.values());
    run.optimizer->set_masters(loaded);
    EXPECT_EQ(run.masters(), loaded);
  });
}

// A parameter of its own masters: rounded at every step.
TEST(ZeroWholeValues, MastersMayBeOf16Bits) {
  for_all([](comm::Communicator& comm, int stage, DType dtype) {
    if (dtype == DType::kFloat32) return;
    ZeroOptions options = unscaled(stage, dtype);
    options.master_dtype = dtype;
    ZeroRun run(comm, two_groups(), test::adam_rule(), options);
    for (unsigned t = 0; t < 2; ++t)
      EXPECT_TRUE(run.step(test::normal(run.layout.size(), t)).applied);
    EXPECT_EQ(run.masters(), run.values());
    EXPECT_NE(run.values(),
              test::floats_of(test::rounded(run.start, dtype).view()));
    EXPECT_TRUE(test::are_same_on_all_ranks(comm, run.params.view()));
  });
}

}  // namespace
}  // namespace thinwire::zero::whole_values_test
