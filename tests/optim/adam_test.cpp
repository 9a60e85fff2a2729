// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/adam.h"

#include <gtest/gtest.h>

#include "optim/states.h"
#include "optim/step_pieces.h"
#include "optim/support.h"
#include "support/errors.h"
#include "thinwire/kernels/adam.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::optim::adam_test {
namespace {

TEST(Adam, GroupsOverrideOnlyTheirSetFields) {
  Adam rule(ParameterLayout::of({{"a", {1}, 0}, {"b", {1}, 1}}),
            {.learning_rate = 0.1,
             .groups = {{}, {.learning_rate = 0.2, .beta1 = 0.5}}});
  EXPECT_EQ(rule.learning_rate(0), 0.1);
  EXPECT_EQ(rule.learning_rate(1), 0.2);
  EXPECT_EQ(rule.group_options(1).beta1, 0.5);
  EXPECT_EQ(rule.group_options(0).beta1, 0.9);
  rule.set_learning_rate(1, 0);
  std::vector<float> params = {1, 1};
  const std::vector<float> grads = {1, 1};
  ThreadPool pool(1);
  rule.apply(1, {params, grads}, pool);
  EXPECT_NE(params[0], 1.0f);
  EXPECT_EQ(params[1], 1.0f);
}

TEST(Adam, RefusesUnknownGroupsByName) {
  Adam rule(ParameterLayout::of({{"p", {1}}}), {});
  test::expect_invalid({"group", "below 1", "1"},
                       [&] { rule.set_learning_rate(1, 0.1); });
  test::expect_invalid({"group", "below 1", "1"},
                       [&] { rule.set_weight_decay(1, 0.1); });
}

// Parts that begin and end within parameters, or hold several and two groups.
TEST(Adam, PartsHaveTheBitsOfTheWhole) {
  const ParameterLayout layout = ParameterLayout::of({{"a", {70'001}, 0},
                                                      {"b", {33}, 1},
                                                      {"none", {0}, 0},
                                                      {"c", {1000}, 1},
                                                      {"d", {77}, 0}});
  const std::size_t n = layout.size();
  AdamOptions options{.learning_rate = 0.1, .weight_decay = 0.1};
  options.groups = {{}, {.learning_rate = 0.01, .beta2 = 0.5}};
  ThreadPool pool(2);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const auto train = [&](std::vector<std::size_t> ends) {
      Adam rule(layout, options);
      Buffer params(n, dtype),
          low(dtype == DType::kFloat32 ? n : 0, dtype_of<Half>);
      kernels::convert(test::normal(n, 1), params.view());
      for (std::int64_t t = 1; t <= 2; ++t) {
        const auto grads = test::gradient(n, t, 0);
        const UpdateArrays all{params.view(), grads, 0.5f, low.view()};
        if (ends.empty()) rule.apply(t, all, pool);
        std::size_t begin = 0;
        for (const std::size_t end : ends) {
          const Range part{begin, end - begin};
          rule.apply_part(t, part, part_of(all, part), pool);
          begin = end;
        }
      }
      StateDict state = test::saved(rule);
      state.put("params", params.view());
      state.put("low_precision", low.view());
      return state;
    };
    EXPECT_TRUE(
        test::same_state(train({1, 70'017, 70'017, 71'100, n}), train({})));
  }
}

TEST(Adam, RefusesPartsThatDoNotFit) {
  Adam rule(ParameterLayout::of({{"p", {5}}}), {});
  ThreadPool pool(1);
  std::vector<float> params(3, 1.0f), four(4, 1.0f);
  const auto refused = [&](Range part, const UpdateArrays& arrays,
                           std::string_view what) {
    test::expect_invalid({what},
                         [&] { rule.apply_part(1, part, arrays, pool); });
  };
  refused({3, 3}, {params, params}, "part");
  refused({6, 0}, {params, params}, "part");
  refused({0, 3}, {params, four}, "grads of 4");
  refused({0, 4}, {params, four}, "params of 3");
  EXPECT_EQ(params, std::vector<float>(3, 1.0f));
}

TEST(Adam, StateIsSavedAndLoaded) {
  const ParameterLayout layout = test::small_layout();
  Adam one(layout, {.learning_rate = 0.01});
  std::vector<float> params = test::normal(layout.size(), 1);
  const auto first_grads = test::normal(layout.size(), 2);
  ThreadPool pool(1);
  one.apply(1, {params, first_grads}, pool);
  one.set_learning_rate(0, 0.5);
  StateDict state = test::saved(one);
  Adam two(layout, {});
  two.adopt(state)();
  EXPECT_EQ(two.learning_rate(0), 0.5);
  std::vector<float> same = params;
  const auto grads = test::normal(layout.size(), 3);
  one.apply(2, {params, grads}, pool);
  two.apply(2, {same, grads}, pool);
  EXPECT_EQ(params, same);

  state = test::saved(one);
  Adam other(ParameterLayout::of({{"p", {2}}}), {});
  test::expect_error(ErrorCode::kCorruptCheckpoint, {"exp_avg", "2 elements"},
                     [&] { static_cast<void>(other.adopt(state)); });
}

}  // namespace
}  // namespace thinwire::optim::adam_test
