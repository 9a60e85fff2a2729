// SPDX-License-Identifier: Apache-2.0
// A run that is saved after any step and goes on in a new optimizer has the
// same bits as one that was never interrupted.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "optim/support.h"
#include "support/errors.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::optim::onebit_adam_resume_test {
namespace {

OnebitAdamOptions with_groups() {
  OnebitAdamOptions options{
      .freeze = {.step = 3},
      .compression = {
          .exchange = {.max_grad_norm = 1, .bucket_elements = 900}}};
  options.groups.resize(2);
  options.groups[1].non_freeze = true;
  options.groups[0].exp_avg_mask.assign(1500, 1.0f);
  options.groups[0].exp_avg_mask[7] = 0;
  return options;
}

OnebitAdamOptions with_few_bits(int bits, OnebitAdamOptions options) {
  options.freeze.warmup_bits = bits;
  return options;
}

struct Variant {
  const char* name;
  OnebitAdamOptions options;
};

class Resume
    : public ::testing::TestWithParam<std::tuple<int, std::int64_t, Variant>> {
};

TEST_P(Resume, ContinuesBitEqual) {
  const auto& [world, saved_after, variant] = GetParam();
  const OnebitAdamOptions& options = variant.options;
  const auto layout =
      options.groups.empty()
          ? test::small_layout()
          : ParameterLayout::of({{"a", {1500}, 0}, {"b", {100}, 1}});
  comm::run_local_ranks(
      world, [&, saved = saved_after](comm::Communicator& comm) {
        OnebitAdam one(comm, layout, options);
        std::vector<float> params = test::normal(layout.size(), 3);
        std::vector<float> same;
        std::unique_ptr<OnebitAdam> two;
        for (std::int64_t t = 1; t <= 8; ++t) {
          auto grads = test::gradient(layout.size(), t, comm.rank());
          auto same_grads = grads;
          one.groups().set_learning_rate(0.001 * static_cast<double>(9 - t));
          one.step(params, grads);
          if (two) {
            two->groups().set_learning_rate(0.001 * static_cast<double>(9 - t));
            two->step(same, same_grads);
            ASSERT_EQ(params, same) << "step " << t;
          }
          if (t == saved) {
            two = std::make_unique<OnebitAdam>(comm, layout, options);
            two->load_state_dict(copy_of(one.state()));
            same = params;
            EXPECT_EQ(two->groups().learning_rate(0),
                      one.groups().learning_rate(0));
            EXPECT_EQ(two->progress().phase, one.progress().phase);
          }
        }
        EXPECT_EQ(two->freeze()->frozen_at(), one.freeze()->frozen_at());
      });
}

std::string name_of(const ::testing::TestParamInfo<Resume::ParamType>& tested) {
  const auto& [world, saved_after, variant] = tested.param;
  return fmt::format("{}_w{}_after{}", variant.name, world, saved_after);
}

INSTANTIATE_TEST_SUITE_P(
    All, Resume,
    ::testing::Combine(
        ::testing::Values(1, 2, 3),
        // In warm-up, at its end, and in the compression stage.
        ::testing::Values(1, 2, 3, 4, 6),
        ::testing::Values(
            Variant{"plain", {.freeze = {.step = 3}}},
            Variant{"groups", with_groups()},
            Variant{"eight_bits", with_few_bits(8, {.freeze = {.step = 3}})},
            Variant{"four_bits_groups", with_few_bits(4, with_groups())},
            Variant{"auto", {.freeze = {.step = kAutoFreeze, .max_step = 4}}},
            Variant{"bf16",
                    {.freeze = {.step = 3},
                     .compression = {.residual_dtype = DType::kBFloat16}}})),
    name_of);

TEST(ResumeOnebitAdam, RefusesWhatDoesNotFitAndKeepsItsOwn) {
  const auto layout = test::small_layout();
  StateDict of_two;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    OnebitAdam optimizer(comm, layout, {.freeze = {.step = 1}});
    std::vector<float> params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 3; ++t) {
      auto grads = test::gradient(layout.size(), t, comm.rank());
      optimizer.step(params, grads);
    }
    if (comm.rank() == 1) of_two = copy_of(optimizer.state());
  });
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    OnebitAdam optimizer(comm, layout, {.freeze = {.step = 1}});
    test::expect_error(ErrorCode::kCorruptCheckpoint,
                       {"rank 1 of 2", "rank 0 of 1"},
                       [&] { optimizer.load_state_dict(of_two); });
    EXPECT_EQ(optimizer.progress().steps, 0);

    StateDict empty;
    test::expect_error(ErrorCode::kCorruptCheckpoint, {"layout"},
                       [&] { optimizer.load_state_dict(empty); });
  });
}

}  // namespace
}  // namespace thinwire::optim::onebit_adam_resume_test
