// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/parameter_layout.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "support/errors.h"
#include "thinwire/core/checksum.h"

namespace thinwire::parameter_layout_test {
namespace {

using test::expect_invalid;
using Specs = std::vector<ParameterSpec>;

constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();

void expect_refused(const Specs& specs,
                    std::initializer_list<std::string_view> parts) {
  expect_invalid(parts, [&] { (void)ParameterLayout::of(specs); });
}

TEST(ParameterLayouts, MayBeEmpty) {
  for (const auto& layout : {ParameterLayout(), ParameterLayout::of({})}) {
    EXPECT_EQ(layout.size(), 0u);
    EXPECT_EQ(layout.num_groups(), 0u);
    EXPECT_TRUE(layout.parameters().empty());
    EXPECT_EQ(layout.describe(), "");
  }
}

TEST(ParameterLayouts, RefuseInvalidModels) {
  expect_refused({{"", {3}}}, {"name", "not empty"});
  expect_refused({{"a\nb", {3}}}, {"name", "one line", "a\nb"});
  expect_refused({{"a", {3}}, {"b", {3}}, {"a", {1}}}, {"'a'", "twice"});
  expect_refused({{"a", {1}, 0}, {"b", {1}, 2}}, {"gaps", "{0, 2}"});
  expect_refused({{"a", {1}, 1}}, {"gaps", "{1}"});
  expect_refused({{"a", {1}, kMost}}, {"gaps"});
  expect_refused({{"big", {kMost, 2}}}, {"'big'", "too many"});
  expect_refused({{"big", {kMost / 2 + 1, 2}}}, {"'big'", "too many"});
  expect_refused({{"big", {kMost}}, {"one", {1}}}, {"'one'", "too many"});
}

TEST(ParameterLayouts, AcceptGroupsInAnyOrder) {
  const auto layout =
      ParameterLayout::of({{"a", {1}, 2}, {"b", {1}, 0}, {"c", {1}, 1}});
  EXPECT_EQ(layout.num_groups(), 3u);
}

// Of a part of a model, whose groups are the model's.
TEST(ParameterLayouts, AcceptDeclaredGroups) {
  const auto layout = ParameterLayout::of({{"a", {1}, 2}, {"b", {1}, 1}}, 4);
  EXPECT_EQ(layout.num_groups(), 4u);
  EXPECT_EQ(layout.parameters()[0].group, 2u);
  EXPECT_EQ(ParameterLayout::of({}, 3).num_groups(), 3u);
  EXPECT_EQ(ParameterLayout::of({{"a", {1}, 0}}, 1).num_groups(), 1u);
  expect_invalid({"'b'", "below 2", "got 2"}, [] {
    (void)ParameterLayout::of({{"a", {1}, 1}, {"b", {1}, 2}}, 2);
  });
}

TEST(ParameterLayouts, CountAShapeWithAZeroAsNothing) {
  EXPECT_EQ(ParameterLayout::of({{"a", {0, 5}}}).size(), 0u);
  EXPECT_EQ(ParameterLayout::of({{"a", {kMost, 0}}}).size(), 0u);
}

TEST(ParameterLayouts, NameTheNearestParameterWhenOneIsMissing) {
  const auto layout =
      ParameterLayout::of({{"embedding", {2}}, {"h.0.w", {2}}, {"head", {2}}});
  expect_invalid({"'h.0.v'", "nearest", "'h.0.w'"},
                 [&] { (void)layout.parameter("h.0.v"); });
  expect_invalid({"'embeding'", "'embedding'"},
                 [&] { (void)layout.parameter("embeding"); });
  try {
    (void)layout.parameter("lm_bias");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "no parameter 'lm_bias'");
  }
  expect_invalid({"'x'", "empty"},
                 [] { (void)ParameterLayout().parameter("x"); });
}

TEST(ParameterLayouts, HaveNoParameterForAnElementPastTheEnd) {
  const auto layout = ParameterLayout::of({{"a", {2}}, {"b"}, {"none", {0}}});
  expect_invalid({"index", "3"}, [&] { (void)layout.parameter_at(3); });
  expect_invalid({"index", "0"},
                 [] { (void)ParameterLayout().parameter_at(0); });
}

TEST(ParameterLayouts, DescribeOneParameterPerLine) {
  const auto layout =
      ParameterLayout::of({{"h.0.w", {768, 3072}}, {"s"}, {"none", {0}, 1}});
  EXPECT_EQ(layout.describe(),
            "h.0.w 768x3072 group 0\ns scalar group 0\nnone 0 group 1\n");
  EXPECT_EQ(layout.hash(), checksum(layout.describe()));
}

// ---- any layout

// Up to 40 parameters with up to 3 extents below 5, empty and scalar ones
// among them, in groups without gaps.
std::vector<ParameterSpec> any_specs() {
  const auto shapes = *rc::gen::resize(
      40, rc::gen::container<std::vector<std::vector<std::size_t>>>(
              rc::gen::resize(3, rc::gen::container<std::vector<std::size_t>>(
                                     rc::gen::inRange<std::size_t>(0, 5)))));
  const auto groups = *rc::gen::inRange<std::size_t>(1, 4);
  std::vector<ParameterSpec> specs;
  for (std::size_t i = 0; i < shapes.size(); ++i)
    specs.push_back({"p" + std::to_string(i), shapes[i],
                     shapes.size() < groups ? 0 : i % groups});
  return specs;
}

std::size_t product(const std::vector<std::size_t>& shape) {
  std::size_t result = 1;
  for (const std::size_t extent : shape) result *= extent;
  return result;
}

RC_GTEST_PROP(AnyLayout, IsDenseAndInTheOrderGiven, ()) {
  const auto specs = any_specs();
  const auto layout = ParameterLayout::of(specs);
  RC_ASSERT(layout.parameters().size() == specs.size());
  std::size_t end = 0;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const Parameter& p = layout.parameters()[i];
    RC_ASSERT(p.name == specs[i].name);
    RC_ASSERT(p.shape == specs[i].shape);
    RC_ASSERT(p.group == specs[i].group);
    RC_ASSERT(p.offset == end);
    RC_ASSERT(p.size == product(specs[i].shape));
    RC_ASSERT(&layout.parameter(p.name) == &p);
    end += p.size;
  }
  RC_ASSERT(layout.size() == end);
}

RC_GTEST_PROP(AnyLayout, FindsForEveryElementTheParameterThatHoldsIt, ()) {
  const auto layout = ParameterLayout::of(any_specs());
  for (std::size_t i = 0; i < layout.size(); ++i) {
    const Parameter& p = layout.parameter_at(i);
    RC_ASSERT(p.offset <= i);
    RC_ASSERT(i < p.offset + p.size);
  }
  for (const Parameter& p : layout.parameters())
    for (std::size_t i = 0; i < p.size; ++i)
      RC_ASSERT(&layout.parameter_at(p.offset + i) == &p);
}

RC_GTEST_PROP(AnyLayout, HashesLikeItsCopyAndUnlikeAnyOther, ()) {
  const auto specs = any_specs();
  const auto others = any_specs();
  const auto layout = ParameterLayout::of(specs);
  const auto other = ParameterLayout::of(others);
  RC_ASSERT(layout.hash() == ParameterLayout::of(specs).hash());
  RC_ASSERT((layout.hash() == other.hash()) ==
            (layout.describe() == other.describe()));
}

}  // namespace
}  // namespace thinwire::parameter_layout_test
