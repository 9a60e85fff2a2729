// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/rows.h"
#include "core/ranges.h"

#include <gtest/gtest.h>

namespace thinwire::checkpoint::rows_test {
namespace {

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
}  // namespace thinwire::checkpoint::rows_test
