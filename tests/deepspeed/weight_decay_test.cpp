// SPDX-License-Identifier: Apache-2.0
// Optimizer::set_weight_decay() of the reference's optimizers and wrappers.
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "optim/support.h"
#include "support/errors.h"
#include "thinwire/core/buffer.h"
#include "thinwire/deepspeed/fp16_optimizer.h"
#include "thinwire/deepspeed/optimizers.h"
#include "thinwire/deepspeed/zero_optimizer.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::deepspeed::weight_decay_test {
namespace {

struct Made {
  const char* name;
  std::function<std::unique_ptr<Optimizer>(
      comm::Communicator&, const ParameterLayout&, double decay)>
      make;
};

template <class Type, class Options>
Made made(const char* name, Options options) {
  return {name, [options](comm::Communicator& comm,
                          const ParameterLayout& layout, double decay) {
            Options o = options;
            o.weight_decay = decay;
            return std::make_unique<Type>(comm, layout, o);
          }};
}

std::vector<Made> all() {
  return {{"exact",
           [](comm::Communicator& comm, const ParameterLayout& layout,
              double decay) {
             return std::make_unique<ExactOptimizer>(
                 comm, std::make_unique<optim::Adam>(
                           layout, optim::AdamOptions{.weight_decay = decay}));
           }},
          made<OnebitAdam>("onebit_adam",
                           optim::OnebitAdamOptions{.freeze = {.step = 3}}),
          made<OnebitLamb>("onebit_lamb",
                           optim::OnebitLambOptions{.freeze = {.step = 3}}),
          made<ZeroOneAdam>("zero_one_adam", optim::ZeroOneAdamOptions{
                                                 .var_freeze_step = 4,
                                                 .local_step_clipper = 2})};
}

class DeepSpeedWeightDecay : public ::testing::TestWithParam<Made> {};
INSTANTIATE_TEST_SUITE_P(All, DeepSpeedWeightDecay, ::testing::ValuesIn(all()),
                         [](const auto& tested) {
                           return std::string(tested.param.name);
                         });

// Also through the 16-bit wrapper, which hands it on; its constructor takes a
// step, with the decay of before.
TEST_P(DeepSpeedWeightDecay, ActsLikeTheOption) {
  const ParameterLayout layout = test::small_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const auto trained = [&](double option, double set) {
      const auto start = test::normal(layout.size(), 3);
      auto inner = GetParam().make(comm, layout, option);
      EXPECT_EQ(inner->groups().weight_decay(0), option);
      inner->groups().set_weight_decay(0, 0.2);
      Fp16Optimizer optimizer(
          comm, layout, std::move(inner), start,
          {.loss_scale = {.initial_scale = 1, .dynamic = false}});
      EXPECT_EQ(optimizer.groups().weight_decay(0), 0.2);
      optimizer.groups().set_weight_decay(0, set);
      EXPECT_EQ(optimizer.groups().weight_decay(0), set);
      Buffer params = Buffer::of<Half>(layout.size());
      Buffer grads = Buffer::of<Half>(layout.size());
      for (std::int64_t t = 1; t <= 7; ++t) {
        kernels::convert(test::gradient(layout.size(), t, comm.rank()),
                         grads.view());
        static_cast<void>(
            optimizer.step({.params = params.view(), .grads = grads.view()}));
      }
      const auto masters = optimizer.masters().as<float>();
      return std::vector<float>(masters.begin(), masters.end());
    };
    const auto want = trained(0.3, 0.3);
    EXPECT_NE(trained(0.1, 0.1), want);
    EXPECT_EQ(trained(0.1, 0.3), want);
    const auto optimizer = GetParam().make(comm, layout, 0.1);
    test::expect_invalid({"weight_decay", "-1"},
                         [&] { optimizer->groups().set_weight_decay(0, -1); });
    test::expect_invalid({"group", "below 1"},
                         [&] { optimizer->groups().set_weight_decay(1, 0); });
  });
}

TEST(DeepSpeedZeroWeightDecay, ActsLikeTheOption) {
  const ParameterLayout layout = test::small_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const auto trained = [&](double option, double set) {
      std::vector<float> params = test::normal(layout.size(), 3);
      ZeroOptimizer optimizer(comm, layout, {.weight_decay = option},
                              View(params), {.stage = 1});
      EXPECT_EQ(optimizer.groups().weight_decay(0), option);
      optimizer.groups().set_weight_decay(0, set);
      EXPECT_EQ(optimizer.groups().weight_decay(0), set);
      for (std::int64_t t = 1; t <= 3; ++t)
        static_cast<void>(test::step_of(optimizer, params, t, comm.rank()));
      return params;
    };
    const auto want = trained(0.3, 0.3);
    EXPECT_NE(trained(0.1, 0.1), want);
    EXPECT_EQ(trained(0.1, 0.3), want);
  });
}

}  // namespace
}  // namespace thinwire::deepspeed::weight_decay_test
