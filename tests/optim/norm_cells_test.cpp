// SPDX-License-Identifier: Apache-2.0
#include "optim/norm_cells.h"

#include <gtest/gtest.h>

#include "thinwire/kernels/norm.h"

namespace thinwire::optim::norm_cells_test {
namespace {

constexpr std::size_t c = kernels::kSumChunk;
using Cells = std::vector<NormCell>;

TEST(NormCells, EndWithParametersAndOnTheGrid) {
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
}  // namespace thinwire::optim::norm_cells_test
