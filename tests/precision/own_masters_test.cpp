// SPDX-License-Identifier: Apache-2.0
// master_dtype of 16 bits: parameters are their own masters.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "optim/states.h"
#include "precision/support.h"
#include "support/errors.h"
#include "thinwire/kernels/adam.h"

namespace thinwire::precision::own_masters_test {
namespace {

using optim::StepReport;

struct OwnMasters {
  int world;
  DType dtype;
  DType state;
};

class TheirOwnMasters : public ::testing::TestWithParam<OwnMasters> {};
INSTANTIATE_TEST_SUITE_P(
    All, TheirOwnMasters,
    ::testing::Values(OwnMasters{1, DType::kFloat16, DType::kFloat32},
                      OwnMasters{2, DType::kFloat16, DType::kFloat16},
                      OwnMasters{4, DType::kFloat16, DType::kFloat32},
                      OwnMasters{2, DType::kBFloat16, DType::kFloat32},
                      OwnMasters{4, DType::kBFloat16, DType::kBFloat16}),
    [](const auto& tested) {
      return fmt::format("{}_state_{}_w{}", to_string(tested.param.dtype),
                         to_string(tested.param.state), tested.param.world);
    });

MixedPrecisionOptions options_of(DType dtype) {
  return {.dtype = dtype,
          .master_dtype = dtype,
          .loss_scale = {.initial_scale = 1024, .dynamic = false}};
}

// Item 78 once more, with ranks, a scale and a step that is skipped.
TEST_P(TheirOwnMasters, AreRoundedAtEveryStep) {
  const auto [world, dtype, state] = GetParam();
  const ParameterLayout layout = test::grouped_layout();
  const std::size_t n = layout.size();
  const int ranks = world;
  comm::run_local_ranks(world, [&, dtype = dtype, state = state](auto& comm) {
    const optim::AdamOptions adam{.learning_rate = 0.02, .state_dtype = state};
    const optim::Adam formula(layout, adam);
    Buffer params = test::converted(test::normal(n, 3), dtype);
    MixedPrecision optimizer(comm, layout, test::exact_adam(adam)(comm, layout),
                             params.view(), options_of(dtype));
    EXPECT_TRUE(optimizer.masters().empty());
    Buffer want = test::copied(params.view());
    Buffer m(n, state), v(n, state);
    const auto scale = static_cast<float>(optimizer.loss_scale());
    for (std::int64_t t = 1; t <= 4; ++t) {
      std::vector<float> mean(n);
      for (int r = 0; r < ranks; ++r) {
        const auto one = test::grid_gradient(layout, t, r);
        for (std::size_t i = 0; i < n; ++i)
          mean[i] += one[i] / static_cast<float>(ranks);
      }
      auto own = test::grid_gradient(layout, t, comm.rank());
      for (float& g : own) g *= scale;
      if (t == 3) {
        auto bad = own;
        if (comm.rank() == ranks - 1)
          bad[n - 1] = std::numeric_limits<float>::infinity();
        Buffer grads = test::converted(bad, dtype);
        EXPECT_FALSE(optimizer.step(params.view(), grads.view()).applied);
        EXPECT_TRUE(test::same_bytes(params.view(), want.view()));
      }
      Buffer grads = test::converted(own, dtype);
      EXPECT_TRUE(optimizer.step(params.view(), grads.view()).applied);

      Buffer p32 = test::converted(want.view(), DType::kFloat32);
      Buffer m32 = test::converted(m.view(), DType::kFloat32);
      Buffer v32 = test::converted(v.view(), DType::kFloat32);
      kernels::ref::adam({.params = p32.template as<float>().data(),
                          .exp_avg = m32.template as<float>().data(),
                          .exp_avg_sq = v32.template as<float>().data(),
                          .grads = mean},
                         formula.coefficients(0, t, 1));
      want = test::converted(p32.view(), dtype);
      m = test::converted(m32.view(), state);
      v = test::converted(v32.view(), state);
      ASSERT_TRUE(test::same_bytes(params.view(), want.view())) << "step " << t;
    }
    const StateDict saved = copy_of(optimizer.state());
    EXPECT_FALSE(saved.has_array("masters"));
    EXPECT_TRUE(test::same_bytes(saved.array("exp_avg"), m.view()));
    EXPECT_TRUE(test::same_bytes(saved.array("exp_avg_sq"), v.view()));
    EXPECT_EQ(optimizer.progress().skipped, 1);
    optim::synchronize(optimizer, params.view());
    optimizer.write_params(params.view());
    EXPECT_TRUE(test::same_bytes(params.view(), want.view()));
  });
}

TEST(TheirOwnMasters, RequireExactAdam) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    const ParameterLayout layout = test::grouped_layout();
    for (const auto& tested : test::every_optimizer()) {
      const DType dtype = DType::kBFloat16;
      Buffer params = test::converted(test::normal(layout.size(), 3), dtype);
      const Buffer before = test::copied(params.view());
      MixedPrecision optimizer(comm, layout, tested.make(comm, layout),
                               params.view(), options_of(dtype));
      Buffer grads =
          test::converted(test::grid_gradient(layout, 1, comm.rank()), dtype);
      if (tested.name == "adam") {
        EXPECT_TRUE(optimizer.step(params.view(), grads.view()).applied);
        continue;
      }
      test::expect_invalid(
          {"params"}, [&] { optimizer.step(params.view(), grads.view()); });
      EXPECT_TRUE(test::same_bytes(params.view(), before.view()));
      EXPECT_EQ(optimizer.progress().steps, 0);
    }
  });
}

TEST(MixedPrecisionOptions, AreRefusedByName) {
  const auto refused = [](const MixedPrecisionOptions& options,
                          std::initializer_list<std::string_view> parts) {
    test::expect_invalid(parts, [&] { options.validate(); });
  };
  refused({.dtype = DType::kFloat32}, {"dtype", "float32"});
  refused({.dtype = DType::kInt32}, {"dtype", "int32"});
  refused({.dtype = DType::kFloat16, .master_dtype = DType::kBFloat16},
          {"master_dtype", "bfloat16"});
  refused({.loss_scale = {.window = 0}}, {"window", "0"});
  // A scale that is not used.
  MixedPrecisionOptions{.dtype = DType::kBFloat16, .loss_scale = {.window = 0}}
      .validate();
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    const ParameterLayout layout = test::grouped_layout();
    const auto initial = test::normal(layout.size(), 3);
    test::expect_invalid({"optimizer", "null"}, [&] {
      MixedPrecision none(comm, layout, nullptr, initial);
    });
    const std::vector<float> three(3);
    test::expect_invalid({"initial", "3"}, [&] {
      MixedPrecision short_one(comm, layout, test::exact_adam({})(comm, layout),
                               three);
    });
  });
}

}  // namespace
}  // namespace thinwire::precision::own_masters_test
