// SPDX-License-Identifier: Apache-2.0
// Items of docs/conformance.json about where elements lie, and refusals.
#include "thinwire/zero/shard_layout.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "support/errors.h"
#include "support/hosts.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::zero::shard_layout_test {
namespace {

using kernels::kSumChunk;
using Sizes = std::vector<std::size_t>;
constexpr auto kHuge = std::numeric_limits<std::size_t>::max();
const ShardLayoutOptions kContiguous{.placement = Placement::kContiguous};
const ShardLayoutOptions kRoundRobin{.placement = Placement::kContiguous,
                                     .round_robin = true};

/// Parameters of group 0, one after the other.
ParameterLayout layout_of(const Sizes& sizes, std::size_t num_groups = 1) {
  std::vector<ParameterSpec> specs;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    specs.push_back({"p" + std::to_string(i), {sizes[i]}});
  return ParameterLayout::of(std::move(specs), num_groups);
}

Sizes paddings(const ShardLayout& shards) {
  Sizes result;
  for (int rank = 0; rank < shards.ranks(); ++rank)
    result.push_back(shards.padding(0, rank));
  return result;
}

Sizes order_of(const ShardLayout& shards) {
  return {shards.order().begin(), shards.order().end()};
}

std::vector<Fragment> fragments_of(const ShardLayout& shards,
                                   std::size_t parameter) {
  const auto fragments = shards.fragments_of(parameter);
  return {fragments.begin(), fragments.end()};
}

std::vector<Range> ranges(const ShardLayout& shards) {
  std::vector<Range> result;
  for (const ShardBucket& bucket : shards.buckets())
    result.push_back(bucket.range);
  return result;
}

TEST(ShardLayout, Item1SlicesHaveTheirOwnersAndPadding) {
  const auto shards = ShardLayout::of(layout_of({10, 7, 5}), 4, kContiguous);
  ASSERT_EQ(shards.buckets().size(), 1u);
  const ShardBucket& bucket = shards.buckets()[0];
  EXPECT_EQ(bucket.range, (Range{0, 22}));
  EXPECT_EQ(bucket.slice, 6u);
  EXPECT_EQ(bucket.pieces,
            (std::vector<Range>{{0, 6}, {6, 6}, {12, 6}, {18, 4}}));
  EXPECT_EQ(bucket.counts, (Sizes{6, 6, 6, 4}));
  EXPECT_EQ(bucket.positions, (Sizes{0, 0, 0, 0}));
  EXPECT_EQ(paddings(shards), (Sizes{0, 0, 0, 2}));
  EXPECT_EQ(fragments_of(shards, 0),
            (std::vector<Fragment>{{0, 0, {0, 6}, 0}, {1, 0, {6, 4}, 0}}));
  EXPECT_EQ(fragments_of(shards, 1),
            (std::vector<Fragment>{{1, 1, {0, 2}, 4}, {2, 1, {2, 5}, 0}}));
  EXPECT_EQ(fragments_of(shards, 2),
            (std::vector<Fragment>{{2, 2, {0, 1}, 5}, {3, 2, {1, 4}, 0}}));
  EXPECT_EQ(shards.fragments(2),
            (std::vector<Fragment>{{2, 1, {2, 5}, 0}, {2, 2, {0, 1}, 5}}));
}

TEST(ShardLayout, Item5RoundRobinOrdersByIndexModuloRanks) {
  const auto order = [](std::size_t n, int ranks) {
    return order_of(
        ShardLayout::of(layout_of(Sizes(n, 1)), ranks, kRoundRobin));
  };
  EXPECT_EQ(order(7, 3), (Sizes{0, 3, 6, 1, 4, 2, 5}));
  EXPECT_EQ(order(5, 2), (Sizes{0, 2, 4, 1, 3}));
  for (const int ranks : {1, 5, 6, 100})
    EXPECT_EQ(order(5, ranks), (Sizes{0, 1, 2, 3, 4}));
}

// An index is one in the group, and a parameter without elements has one too.
TEST(ShardLayout, Item5RoundRobinCountsWithinTheGroup) {
  const auto layout = ParameterLayout::of({{"a", {2}, 1},
                                           {"b", {3}, 0},
                                           {"c", {0}, 1},
                                           {"d", {5}, 1},
                                           {"e", {1}, 0},
                                           {"f", {4}, 0}},
                                          2);
  const auto shards = ShardLayout::of(layout, 2, kRoundRobin);
  EXPECT_EQ(order_of(shards), (Sizes{1, 5, 4, 0, 3, 2}));
  EXPECT_EQ(ranges(shards), (std::vector<Range>{{0, 8}, {0, 7}}));
  // Group 0: b and f, then f's last and e; of group 1 rank 0 has 4 elements,
  // a and the first of d, behind its 4 of group 0.
  EXPECT_EQ(fragments_of(shards, 5),
            (std::vector<Fragment>{{0, 5, {0, 1}, 3}, {1, 5, {1, 3}, 0}}));
  EXPECT_EQ(fragments_of(shards, 4),
            (std::vector<Fragment>{{1, 4, {0, 1}, 3}}));
  EXPECT_EQ(fragments_of(shards, 3),
            (std::vector<Fragment>{{0, 3, {0, 2}, 6}, {1, 3, {2, 3}, 4}}));
}

TEST(ShardLayout, Item8NothingAtAllCanBeSharded) {
  for (const auto& options : {ShardLayoutOptions{}, kContiguous}) {
    const auto shards = ShardLayout::of(ParameterLayout(), 3, options);
    EXPECT_TRUE(shards.buckets().empty());
    EXPECT_EQ(shards.shard_size(2), 0u);
    EXPECT_EQ(shards.layout_of_shard(ParameterLayout(), 2).size(), 0u);
  }
}

// Buckets are cut by elements, not parameters, and end on the grid. DeepSpeed
// reduces a parameter that is larger than a bucket alone, from where it lies.
TEST(ShardLayout, Item9ABucketIsFullOrTheLast) {
  const auto cells = [](Sizes sizes, std::size_t bucket) {
    for (std::size_t& size : sizes) size *= kSumChunk;
    return ranges(ShardLayout::of(layout_of(sizes), 2,
                                  {.bucket_elements = bucket * kSumChunk}));
  };
  const auto expected = [](std::size_t first, std::size_t second) {
    return std::vector<Range>{{0, first * kSumChunk},
                              {first * kSumChunk, second * kSumChunk}};
  };
  EXPECT_EQ(cells({4, 6, 1}, 10), expected(10, 1));
  EXPECT_EQ(cells({10}, 10), (std::vector<Range>{{0, 10 * kSumChunk}}));
  EXPECT_EQ(cells({11}, 10), expected(10, 1));
}

TEST(ShardLayout, Item9ABucketsSizeIsRoundedDownToTheGrid) {
  const auto sizes = [](std::size_t elements, std::size_t bucket) {
    Sizes result;
    for (const Range& range : ranges(ShardLayout::of(
             layout_of({elements}), 3, {.bucket_elements = bucket})))
      result.push_back(range.size);
    return result;
  };
  EXPECT_EQ(sizes(2 * kSumChunk + 7, 1), (Sizes{kSumChunk, kSumChunk, 7}));
  EXPECT_EQ(sizes(2 * kSumChunk + 7, 2 * kSumChunk - 1),
            (Sizes{kSumChunk, kSumChunk, 7}));
  EXPECT_EQ(sizes(2 * kSumChunk + 7, 2 * kSumChunk + 5),
            (Sizes{2 * kSumChunk, 7}));
  EXPECT_EQ(sizes(2 * kSumChunk + 7, 3 * kSumChunk),
            (Sizes{2 * kSumChunk + 7}));
  EXPECT_EQ(sizes(2 * kSumChunk + 7, kHuge), (Sizes{2 * kSumChunk + 7}));
  EXPECT_EQ(sizes(7, 1), (Sizes{7}));
}

// What is not sharded here parts buckets; what begins between two points of
// the grid is not cut again where it fits a bucket.
TEST(ShardLayout, Item9ABucketContainsOnlyAdjacentElements) {
  const auto layout = ParameterLayout::of(
      {{"a", {9}, 0}, {"b", {kSumChunk}, 1}, {"c", {7}, 0}, {"d", {2}, 0}}, 2);
  ShardLayoutOptions options{.bucket_elements = kSumChunk, .groups = {0}};
  EXPECT_EQ(ranges(ShardLayout::of(layout, 2, options)),
            (std::vector<Range>{{0, 9}, {kSumChunk + 9, 9}}));
  options.groups = {1, 1};
  EXPECT_EQ(ranges(ShardLayout::of(layout, 2, options)),
            (std::vector<Range>{{9, kSumChunk}}));
}

// The pieces of local rank l of all hosts form one range.
TEST(ShardLayout, HierarchicalPiecesAreInTheOrderOfPlaces) {
  const auto layout = layout_of({5 * kSumChunk, 4000, 3});
  const comm::Hosts hosts = test::hosts_of(6, 2, test::Placing::kRoundRobin, 0);
  const auto shards = ShardLayout::of(
      layout, 6, {.bucket_elements = 7 * kSumChunk, .hosts = hosts});
  const std::vector<int> owners(shards.owners().begin(), shards.owners().end());
  EXPECT_EQ(owners, (std::vector<int>{0, 1, 2, 3, 4, 5}));
  const comm::Hosts blocks = test::hosts_of(6, 2, test::Placing::kBlocks, 0);
  const auto placed = ShardLayout::of(
      layout, 6, {.bucket_elements = 7 * kSumChunk, .hosts = blocks});
  const std::vector<int> places(placed.owners().begin(), placed.owners().end());
  EXPECT_EQ(places, (std::vector<int>{0, 2, 4, 1, 3, 5}));
  for (const ShardBucket& bucket : placed.buckets()) {
    std::size_t end = 0;
    for (const int rank : places) {
      const auto r = static_cast<std::size_t>(rank);
      EXPECT_EQ(bucket.within[r].offset, end);
      EXPECT_EQ(bucket.pieces[r].offset, bucket.range.offset + end);
      end = bucket.within[r].end();
    }
    EXPECT_EQ(end, bucket.range.size);
  }
  for (std::size_t p = 0; p < 3; ++p) {
    std::size_t end = 0;
    for (const Fragment& fragment : placed.fragments_of(p)) {
      EXPECT_EQ(fragment.range.offset, end);
      end = fragment.range.end();
    }
    EXPECT_EQ(end, layout.parameters()[p].size);
  }
  EXPECT_NE(placed.describe(), shards.describe());
  EXPECT_EQ(shards.describe(),
            ShardLayout::of(layout, 6, {.bucket_elements = 7 * kSumChunk})
                .describe());
}

TEST(ShardLayout, NamesFragmentsAfterParameters) {
  const auto layout = ParameterLayout::of({{"a", {3}, 1}, {"b", {2, 2}, 0}}, 2);
  const auto shards = ShardLayout::of(layout, 2, kContiguous);
  EXPECT_EQ(shards.layout_of_shard(layout, 0).describe(),
            "b[0:2] 2 group 0\na[0:2] 2 group 1\n");
  EXPECT_EQ(shards.layout_of_shard(layout, 1).describe(),
            "b[2:4] 2 group 0\na[2:3] 1 group 1\n");
  EXPECT_EQ(shards.describe(), "bucket 0+4 in 2 2\nbucket 0+3 in 2 1\n");
}

TEST(ShardLayoutErrors, NameTheInvalidOption) {
  const auto layout = layout_of({3, 4}, 2);
  const auto refused = [&](int ranks, const ShardLayoutOptions& options,
                           std::initializer_list<std::string_view> parts) {
    test::expect_invalid(
        parts, [&] { (void)ShardLayout::of(layout, ranks, options); });
  };
  refused(0, {}, {"ranks", ">= 1", "got 0"});
  refused(-1, kContiguous, {"ranks", "got -1"});
  refused(2, {.bucket_elements = 0}, {"bucket_elements", ">= 1", "got 0"});
  refused(2, {.hosts = test::hosts_of(4, 2, test::Placing::kBlocks, 0)},
          {"hosts", "of 2 ranks", "got 4"});
  refused(2, {.groups = {1, 2}}, {"groups", "below 2", "got 2"});
  for (const int rank : {-1, 2})
    test::expect_invalid({"rank", "got " + std::to_string(rank)}, [&] {
      (void)ShardLayout::of(layout, 2).fragments(rank);
    });
}

}  // namespace
}  // namespace thinwire::zero::shard_layout_test
