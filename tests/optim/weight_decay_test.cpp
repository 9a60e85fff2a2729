// SPDX-License-Identifier: Apache-2.0
// Optimizer::set_weight_decay(), for every optimizer; against plain loops in
// zero_one_adam_test.cpp and onebit_lamb_test.cpp.
#include <gtest/gtest.h>

#include <cmath>

#include "optim/low_bit/cases.h"
#include "support/errors.h"

namespace thinwire::optim::weight_decay_test {
namespace {

/// With a weight decay as given.
using Decayed = test::OpenCase<double>;

std::vector<Decayed> all() {
  const auto set = [](auto& options, double decay) {
    options.weight_decay = decay;
    for (auto& group : options.groups) group.weight_decay.reset();
  };
  const auto adam = [](bool decoupled) {
    return [=](double decay) {
      return test::exact_adam({.weight_decay = decay,
                               .decoupled_decay = decoupled,
                               .groups = {{}, {}}});
    };
  };
  return {
      {"adam", adam(true), 4},
      {"adam_l2", adam(false), 4},
      {"lamb",
       [](double decay) {
         return test::exact_lamb({.weight_decay = decay, .groups = {{}, {}}});
       },
       4},
      test::open_case<double>("onebit_adam", test::onebit_adam,
                              test::mixed_onebit_adam(), set, 6),
      test::open_case<double>("onebit_lamb", test::onebit_lamb,
                              test::short_onebit_lamb(), set, 6),
      test::open_case<double>("zero_one_adam", test::zero_one_adam,
                              test::short_zero_one_adam(), set, 19)};
}

class WeightDecay : public ::testing::TestWithParam<Decayed> {};
INSTANTIATE_TEST_SUITE_P(All, WeightDecay, ::testing::ValuesIn(all()),
                         [](const auto& tested) { return tested.param.name; });

void set_all(Optimizer& optimizer, double decay) {
  for (std::size_t g = 0; g < optimizer.groups().num_groups(); ++g)
    optimizer.groups().set_weight_decay(g, decay);
}

TEST_P(WeightDecay, ChangesOneGroupFromTheNextStepOn) {
  const ParameterLayout layout = test::grouped_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const auto changed = GetParam().make(0)(comm, layout);
    const auto plain = GetParam().make(0)(comm, layout);
    std::vector<float> params = test::normal(layout.size(), 3);
    std::vector<float> want = params;
    const auto step = [&](std::int64_t t) {
      test::step_of(*changed, params, t, comm.rank());
      test::step_of(*plain, want, t, comm.rank());
    };
    step(1);
    EXPECT_EQ(params, want);
    changed->groups().set_weight_decay(1, 0.5);
    step(2);
    for (const Parameter& p : layout.parameters())
      for (std::size_t i = p.offset; i < p.offset + p.size; ++i)
        ASSERT_EQ(params[i] != want[i], p.group == 1) << p.name << ' ' << i;
  });
}

// The program sets it after a load, as it gives the same options.
TEST_P(WeightDecay, IsNotPartOfTheState) {
  const ParameterLayout layout = test::grouped_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const auto first = GetParam().make(0.1)(comm, layout);
    set_all(*first, 0.3);
    std::vector<float> params = test::normal(layout.size(), 3);
    const auto step = [&](Optimizer& optimizer, std::vector<float>& of,
                          std::int64_t t) {
      test::step_of(optimizer, of, t, comm.rank());
    };
    for (std::int64_t t = 1; t <= GetParam().steps; ++t) {
      step(*first, params, t);
      const auto second = GetParam().make(0.2)(comm, layout);
      second->load_state_dict(copy_of(first->state()));
      EXPECT_EQ(second->groups().weight_decay(0), 0.2);
      EXPECT_EQ(second->groups().weight_decay(1), 0.2);
      set_all(*second, 0.3);
      std::vector<float> resumed = params;
      const auto undisturbed = GetParam().make(0.3)(comm, layout);
      undisturbed->load_state_dict(copy_of(first->state()));
      std::vector<float> want = params;
      step(*second, resumed, t + 1);
      step(*undisturbed, want, t + 1);
      ASSERT_EQ(resumed, want) << "saved after step " << t;
    }
  });
}

TEST_P(WeightDecay, IsCheckedLikeTheOption) {
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    const auto optimizer = GetParam().make(0.1)(comm, test::grouped_layout());
    const auto refused = [&](std::size_t group, double decay,
                             std::initializer_list<std::string_view> parts) {
      test::expect_invalid(
          parts, [&] { optimizer->groups().set_weight_decay(group, decay); });
    };
    refused(0, -0.5, {"weight_decay must be finite and >= 0", "-0.5"});
    refused(0, NAN, {"weight_decay", "nan"});
    refused(1, INFINITY, {"weight_decay", "inf"});
    refused(2, 0.1, {"group must be below 2", "got 2"});
    test::expect_invalid({"group must be below 2"}, [&] {
      static_cast<void>(optimizer->groups().weight_decay(2));
    });
    EXPECT_EQ(optimizer->groups().weight_decay(0), 0.1);
    EXPECT_EQ(optimizer->groups().weight_decay(1), 0.1);
  });
}

}  // namespace
}  // namespace thinwire::optim::weight_decay_test
