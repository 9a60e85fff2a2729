// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "thinwire/core/parameter_layout.h"

namespace thinwire {
namespace {

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
}  // namespace thinwire
