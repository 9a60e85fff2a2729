// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/lamb.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "optim/naive/lamb.h"
#include "optim/norm_cells.h"
#include "optim/states.h"
#include "optim/step_pieces.h"
#include "optim/support.h"
#include "support/errors.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::optim::lamb_test {
namespace {

TEST(TrustRatio, IsClampedAndOneIfANormIsZero) {
  EXPECT_EQ(trust_ratio(3, 2, 0.01, 10).value, 1.5);
  EXPECT_EQ(trust_ratio(300, 2, 0.01, 10).value, 10);
  EXPECT_EQ(trust_ratio(3, 2000, 0.01, 10).value, 0.01);
  EXPECT_TRUE(trust_ratio(2, 2, 0.01, 10).computed);
  for (const TrustRatio& r :
       {trust_ratio(0, 2, 2, 10), trust_ratio(2, 0, 2, 10)}) {
    EXPECT_EQ(r.value, 1);
    EXPECT_FALSE(r.computed);
  }
}

LambOptions with_groups() {
  LambOptions o{.learning_rate = 0.05, .weight_decay = 0.1};
  o.groups.resize(2);
  o.groups[1] = {{.learning_rate = 0.02,
                  .beta1 = 0.5,
                  .beta2 = 0.9,
                  .epsilon = 1e-3,
                  .weight_decay = 0.0}};
  return o;
}

LambOptions with_limits_of_groups() {
  return test::naive::with_limits_of_groups(with_groups());
}

class LambWorlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, LambWorlds, ::testing::Values(1, 2, 3, 4, 8));

void expect_plain_loops(int world, const LambOptions& options) {
  const ParameterLayout layout = test::awkward_layout();
  const auto got = test::train(world, layout, test::exact_lamb(options), 3);
  test::naive::Lamb want{test::naive::setup_of(world, layout, options),
                         test::naive::limits_of(layout, options),
                         test::normal(layout.size(), 3)};
  for (std::int64_t t = 1; t <= 3; ++t) {
    auto sum = test::gradient(layout.size(), t, 0);
    for (int r = 1; r < world; ++r) {
      const auto g = test::gradient(layout.size(), t, r);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += g[i];
    }
    want.apply(sum, static_cast<float>(1.0 / world));
  }
  for (const auto& params : got) EXPECT_EQ(params, want.params);
}

TEST_P(LambWorlds, EqualPlainLoopsWithBothGroups) {
  expect_plain_loops(GetParam(), with_groups());
  expect_plain_loops(GetParam(), with_limits_of_groups());
}

// Small parameters that fill parts, large ones between them, and one that is
// large only because of where it begins.
TEST(Lamb, EqualsPlainLoopsForAnyDivisionIntoThreads) {
  const auto layout = ParameterLayout::of({{"a", {40'000}},
                                           {"b", {40'000}},
                                           {"c", {3}},
                                           {"large", {100'000}},
                                           {"none", {0}},
                                           {"d", {65}},
                                           {"shifted", {65'536}},
                                           {"e", {7}}});
  Lamb rule(layout, {.learning_rate = 0.1});
  test::naive::Lamb want{
      test::naive::setup_of(1, layout, LambOptions{.learning_rate = 0.1}),
      {{}},
      test::normal(layout.size(), 3)};
  std::vector<float> params = want.params;
  const auto grads = test::gradient(layout.size(), 1, 0);
  ThreadPool pool(2);
  rule.apply(1, {params, grads}, pool);
  want.apply(grads, 1);
  EXPECT_EQ(params, want.params);
}

// ---- in parts: three shards that end on the grid, a rule for each
ParameterLayout sharded_layout() {
  return ParameterLayout::of({{"scalar", {}, 1},
                              {"cut_twice", {3, 2000}, 0},
                              {"none", {0}, 1},
                              {"inside", {100}, 1},
                              {"cut", {900}, 0},
                              {"last", {2, 50}, 0}});
}

struct Shard {
  Range range;        // of the model
  std::size_t first;  // the first parameter, of the model
  std::unique_ptr<Lamb> rule;
};

Shard shard_of(const ParameterLayout& model, Range range) {
  Shard shard{range, model.parameters().size(), nullptr};
  std::vector<ParameterSpec> specs;
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    const Parameter& p = model.parameters()[i];
    const std::size_t begin = std::max(p.offset, range.offset);
    const std::size_t end = std::min(p.offset + p.size, range.end());
    // Pieces stay numbered in a row, so an empty parameter has an empty one.
    if (begin > end || (begin == end && p.size > 0)) continue;
    shard.first = std::min(shard.first, i);
    specs.push_back({p.name, {end - begin}, p.group});
  }
  shard.rule = std::make_unique<Lamb>(
      ParameterLayout::of(specs, model.num_groups()), with_limits_of_groups());
  return shard;
}

TEST(Lamb, ShardsHaveTheBitsOfTheWhole) {
  constexpr std::size_t c = kernels::kSumChunk;
  const ParameterLayout model = sharded_layout();
  const std::size_t n = model.size();
  std::vector<Shard> shards;
  for (const Range range :
       {Range{0, 2 * c}, Range{2 * c, 4 * c}, Range{6 * c, n - 6 * c}})
    shards.push_back(shard_of(model, range));
  Lamb whole(model, with_limits_of_groups());
  ThreadPool pool(2);
  std::vector<float> want = test::normal(n, 3);
  std::vector<float> params = want;
  std::vector<BFloat16> want_low(n), low(n);
  for (std::int64_t t = 1; t <= 3; ++t) {
    const auto grads = test::gradient(n, t, 0);
    whole.apply(t, {want, grads, 0.5f, want_low}, pool);

    const UpdateArrays all{params, grads, 0.5f, low};
    std::vector<NormSums> norms(model.parameters().size());
    for (const Shard& shard : shards) {
      const auto cells = norm_cells(shard.rule->layout());
      std::vector<NormSums> sums(cells.size());
      const auto own = part_of(all, shard.range);
      // Cell by cell here, and those that follow in one go.
      shard.rule->measure(t, {cells.data(), 1}, part_of(own, cells[0].range),
                          {sums.data(), 1});
      const std::size_t begin = cells[1].range.offset;
      shard.rule->measure(t, std::span(cells).subspan(1),
                          part_of(own, {begin, shard.range.size - begin}),
                          std::span(sums).subspan(1));
      std::vector<kernels::ChunkTotal<NormSums>> totals(norms.size());
      for (std::size_t i = 0; i < cells.size(); ++i)
        totals[cells[i].parameter].add(
            (shard.range.offset + cells[i].range.offset) / kernels::kSumChunk,
            sums[i]);
      for (std::size_t i = 0; i < shard.rule->layout().parameters().size(); ++i)
        norms[shard.first + i] += totals[i].total();
    }
    for (const Shard& shard : shards) {
      shard.rule->set_norms(
          t, std::span(norms).subspan(
                 shard.first, shard.rule->layout().parameters().size()));
      // Parts need not end on the grid.
      const Range range = shard.range;
      for (const Range part : {Range{0, 501}, Range{501, range.size - 501}})
        shard.rule->apply_part(
            t, part, part_of(all, {range.offset + part.offset, part.size}),
            pool);
    }
    EXPECT_EQ(params, want) << t;
    EXPECT_EQ(std::memcmp(low.data(), want_low.data(), n * 2), 0) << t;
  }
}

TEST(Lamb, RefusesPartsWithoutTheStepsNorms) {
  Lamb rule(ParameterLayout::of({{"p", {5}}}), {});
  ThreadPool pool(1);
  std::vector<float> params(5, 1.0f);
  const std::vector<float> grads(5, 1.0f);
  const auto refused = [&](std::int64_t step) {
    test::expect_error(ErrorCode::kFailedPrecondition,
                       {"norms", std::to_string(step)}, [&] {
                         rule.apply_part(step, {0, 5}, {params, grads}, pool);
                       });
  };
  refused(1);
  rule.apply(1, {params, grads}, pool);
  refused(2);
  const std::vector<NormSums> norms(1), two(2);
  test::expect_invalid({"parameters", "got 2"},
                       [&] { rule.set_norms(2, two); });
  rule.set_norms(2, norms);
  refused(3);
  rule.apply_part(2, {0, 5}, {params, grads}, pool);
  StateDict state = test::saved(rule);
  rule.adopt(state)();
  refused(2);
  const std::vector<NormCell> cells = {{0, {0, 5}}};
  std::vector<NormSums> sums(2);
  test::expect_invalid({"sums", "got 2"}, [&] {
    rule.measure(3, cells, {params, grads}, sums);
  });
  test::expect_invalid({"part", "within 5"}, [&] {
    rule.measure(3, std::vector<NormCell>{{0, {1, 5}}}, {params, grads}, {});
  });
}

// ---- cells of norms

using Cells = std::vector<NormCell>;

TEST(NormCells, EndWithParametersAndOnTheGrid) {
  constexpr std::size_t c = kernels::kSumChunk;
  const auto layout = ParameterLayout::of({{"short", {3}},
                                           {"across", {2 * c}},
                                           {"none", {0}},
                                           {"to_border", {c - 3}},
                                           {"one_cell", {c}},
                                           {"scalar"}});
  EXPECT_EQ(norm_cells(layout), (Cells{{0, {0, 3}},
                                       {1, {3, c - 3}},
                                       {1, {c, c}},
                                       {1, {2 * c, 3}},
                                       {3, {2 * c + 3, c - 3}},
                                       {4, {3 * c, c}},
                                       {5, {4 * c, 1}}}));
  EXPECT_EQ(norm_cells(ParameterLayout()), Cells());
}

// 2^53 absorbs a 1 that is added to it, but not a 2.
TEST(NormCells, SumsAreAddedInOrder) {
  const Cells cells = {{0, {0, 1}}, {2, {1, 1}}, {2, {2, 1}}, {2, {3, 1}}};
  const auto update_of = [&](double first, double second, double third) {
    const std::vector<NormSums> sums = {
        {5, 7}, {1, first}, {2, second}, {3, third}};
    const auto total = parameter_sums(cells, sums, 3);
    EXPECT_EQ(total[0], (NormSums{5, 7}));
    EXPECT_EQ(total[1], NormSums());
    EXPECT_EQ(total[2].params, 6);
    return total[2].update;
  };
  EXPECT_EQ(update_of(1, 1, 0x1p53), 0x1p53 + 2);
  EXPECT_EQ(update_of(0x1p53, 1, 1), 0x1p53);
}

}  // namespace
}  // namespace thinwire::optim::lamb_test
