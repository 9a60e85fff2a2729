// SPDX-License-Identifier: Apache-2.0
// Lean 1-bit Adam: before its freeze against ZeRO-1, after it against plain
// loops, bit for bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lean/lean_plain.h"

namespace thinwire::lean::lean_plain_test {
namespace {

using test::LeanVariant;
using test::named_gradients;
using test::NamedGradients;

class LeanPlainLoops : public ::testing::TestWithParam<
                           std::tuple<int, NamedGradients, LeanVariant>> {};
INSTANTIATE_TEST_SUITE_P(
    All, LeanPlainLoops,
    ::testing::Combine(::testing::Values(1, 2, 3),
                       ::testing::ValuesIn(named_gradients()),
                       ::testing::ValuesIn(test::lean_variants())),
    [](const auto& tested) {
      return fmt::format("{}_{}_w{}", std::get<2>(tested.param).name,
                         std::get<1>(tested.param).name,
                         std::get<0>(tested.param));
    });
INSTANTIATE_TEST_SUITE_P(
    More, LeanPlainLoops,
    ::testing::Combine(
        ::testing::Values(4, 8),
        ::testing::Values(named_gradients()[1], named_gradients()[3]),
        ::testing::Values(test::lean_variants()[0], test::lean_variants()[1],
                          test::lean_variants()[3])),
    [](const auto& tested) {
      return fmt::format("{}_{}_w{}", std::get<2>(tested.param).name,
                         std::get<1>(tested.param).name,
                         std::get<0>(tested.param));
    });

TEST_P(LeanPlainLoops, AreEqual) {
  const auto& [world, gradients, variant] = GetParam();
  test::expect_plain_loops({.world = world}, gradients, variant);
}

}  // namespace
}  // namespace thinwire::lean::lean_plain_test
