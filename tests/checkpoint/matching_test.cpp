// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/matching.h"

#include <gtest/gtest.h>

#include "checkpoint/rows.h"
#include "core/ranges.h"
#include "support/errors.h"

namespace thinwire::checkpoint::matching_test {
namespace {

using test::expect_error;

std::vector<SavedParameter> saved() {
  return {{"wte.weight", {50257, 768}, 0, {}},
          {"h.0.weight", {768, 3072}, 0, {}},
          {"h.0.bias", {3072}, 1, {}},
          {"head", {0}, 0, {}}};
}

ParameterLayout model(std::vector<ParameterSpec> specs) {
  return ParameterLayout::of(std::move(specs), 2);
}

TEST(Matching, GoesByNameWhateverTheOrder) {
  const Matching found = match(saved(),
                               model({{"head", {0}, 0},
                                      {"h.0.bias", {3072}, 1},
                                      {"wte.weight", {50257, 768}, 0},
                                      {"h.0.weight", {768, 3072}, 0}}),
                               {}, true);
  const std::vector<std::optional<std::size_t>> want{3, 2, 0, 1};
  EXPECT_EQ(found.saved, want);
  EXPECT_FALSE(found.has_new());
}

TEST(Matching, TellsAllDifferences) {
  const ParameterLayout layout = model({{"wte.weight", {50304, 768}, 0},
                                        {"h.0.weights", {768, 3072}, 0},
                                        {"h.0.bias", {3072}, 0},
                                        {"head", {0}, 0}});
  expect_error(
      ErrorCode::kCorruptCheckpoint,
      {"shape wte.weight: checkpoint [50257, 768], model [50304, 768]\n",
       "missing h.0.weights (nearest: h.0.weight)\n",
       "group h.0.bias: checkpoint 1, model 0\n",
       "unexpected h.0.weight (nearest: h.0.weights)"},
      [&] { static_cast<void>(match(saved(), layout, {}, true)); });
}

TEST(Matching, GroupsAreTheOptimizersBusiness) {
  const ParameterLayout layout = model({{"wte.weight", {50257, 768}, 1},
                                        {"h.0.weight", {768, 3072}, 0},
                                        {"h.0.bias", {3072}, 0},
                                        {"head", {0}, 0}});
  EXPECT_EQ(match(saved(), layout, {}, false).saved.size(), 4u);
}

TEST(Matching, OptionsLiftDifferences) {
  const ParameterLayout layout = model({{"embedding", {50257, 768}, 0},
                                        {"h.0.weight", {768, 3072}, 0},
                                        {"new.a", {5}, 0},
                                        {"new.b", {5}, 1}});
  const LoadOptions options{.rename = {{"wte.weight", "embedding"}},
                            .allow_missing = {"new.*"},
                            .ignore = {"head", "*.bias"}};
  const Matching found = match(saved(), layout, options, true);
  const std::vector<std::optional<std::size_t>> want{0, 1, std::nullopt,
                                                     std::nullopt};
  EXPECT_EQ(found.saved, want);
  EXPECT_TRUE(found.has_new());
}

TEST(Matching, OptionsThatNameNothingAreErrors) {
  const ParameterLayout layout = model({{"wte.weight", {50257, 768}, 0},
                                        {"h.0.weight", {768, 3072}, 0},
                                        {"h.0.bias", {3072}, 1},
                                        {"head", {0}, 0}});
  const auto refused = [&](const LoadOptions& options, const char* option) {
    expect_error(ErrorCode::kInvalidArgument, {option}, [&] {
      static_cast<void>(match(saved(), layout, options, true));
    });
  };
  refused({.rename = {{"nobody", "x"}}}, "LoadOptions.rename");
  refused({.rename = {{"head", "h.0.bias"}}}, "LoadOptions.rename");
  refused({.allow_missing = {"x*"}}, "LoadOptions.allow_missing");
  refused({.ignore = {"x"}}, "LoadOptions.ignore");
}

TEST(Matching, StarsStandForAnything) {
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("a*c", "abc"));
  EXPECT_TRUE(matches("a*c", "ac"));
  EXPECT_TRUE(matches("*.b*.c", "a.b.b1.c"));
  EXPECT_FALSE(matches("a*c", "abcd"));
  EXPECT_FALSE(matches("ab", "abc"));
  EXPECT_FALSE(matches("a*b*c", "acb"));
  EXPECT_TRUE(matches("w[0]", "w[0]"));
}

const std::vector<Range> kRanges{{10, 3}, {0, 0}, {2, 4}};

TEST(Rows, EndWhereAParameterDoes) {
  const auto layout = ParameterLayout::of(
      {{"a", {3}}, {"none", {0}}, {"b", {2, 2}}, {"c", {6}}});
  const std::vector<Row> want{{3, {3, 3}}, {0, {2, 1}}, {2, {0, 3}}};
  EXPECT_EQ(rows_of(layout, kRanges), want);
  EXPECT_TRUE(rows_of(layout, std::vector<Range>{}).empty());
}

TEST(Rows, PartsOfRangesKeepTheirOrder) {
  EXPECT_EQ(part_of_ranges(kRanges, {0, 7}),
            (std::vector<Range>{{10, 3}, {2, 4}}));
  EXPECT_EQ(part_of_ranges(kRanges, {2, 3}),
            (std::vector<Range>{{12, 1}, {2, 2}}));
  EXPECT_TRUE(part_of_ranges(kRanges, {7, 0}).empty());
  EXPECT_EQ(total_size(kRanges), 7u);
}

TEST(Rows, SharesCoverEverythingOnce) {
  for (const std::size_t size : {0u, 1u, 7u, 31u, 32u, 33u, 4097u})
    for (const int parts : {1, 2, 3, 8}) {
      std::size_t next = 0;
      for (int part = 0; part < parts; ++part) {
        const Range share = share_of(size, part, parts);
        EXPECT_EQ(share.offset, next);
        EXPECT_LE(share.size, size / static_cast<std::size_t>(parts) + 1);
        next = share.end();
      }
      EXPECT_EQ(next, size);
    }
}

}  // namespace
}  // namespace thinwire::checkpoint::matching_test
