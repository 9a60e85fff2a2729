// SPDX-License-Identifier: Apache-2.0
// Items of docs/conformance.md about where elements lie, refusals, and what
// holds of any layout.
#include "thinwire/zero/shard_layout.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
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

TEST(ShardLayout, Item5RoundRobinGoesByIndexModuloRanks) {
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
TEST(ShardLayout, Item9ABucketHoldsNeighboursAlone) {
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
TEST(ShardLayout, ByHostPiecesLieInTheOrderOfPlaces) {
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

TEST(ShardLayoutErrors, NameWhatIsWrong) {
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

// ---- any layout

/// Up to 12 parameters, some of them empty or as long as cells of the grid, in
/// groups that may be empty or left out.
struct Drawn {
  ParameterLayout layout;
  ShardLayoutOptions options;
  ShardLayout shards;
  std::size_t ranks = 1;

  [[nodiscard]] bool includes(std::size_t group) const {
    return options.groups.empty() ||
           std::find(options.groups.begin(), options.groups.end(), group) !=
               options.groups.end();
  }
};

std::size_t any_size() {
  const auto cells = *rc::gen::inRange<std::size_t>(1, 5);
  return *rc::gen::oneOf(
      rc::gen::inRange<std::size_t>(0, 5001),
      rc::gen::element<std::size_t>(0, 1, cells * kSumChunk - 1,
                                    cells * kSumChunk, cells * kSumChunk + 1));
}

Drawn draw(Placement placement) {
  Drawn drawn;
  const auto num_groups = *rc::gen::inRange<std::size_t>(1, 5);
  std::vector<ParameterSpec> specs(*rc::gen::inRange<std::size_t>(0, 13));
  for (std::size_t i = 0; i < specs.size(); ++i)
    specs[i] = {"p" + std::to_string(i),
                {any_size()},
                *rc::gen::inRange<std::size_t>(0, num_groups)};
  drawn.layout = ParameterLayout::of(specs, num_groups);
  drawn.options = {
      .placement = placement,
      .bucket_elements = *rc::gen::oneOf(
          rc::gen::inRange<std::size_t>(1, 20001),
          rc::gen::element(kSumChunk - 1, kSumChunk, 3 * kSumChunk + 5,
                           std::numeric_limits<std::size_t>::max())),
      .round_robin = *rc::gen::arbitrary<bool>(),
      .groups = *rc::gen::resize(
          4, rc::gen::container<std::vector<std::size_t>>(
                 rc::gen::inRange<std::size_t>(0, num_groups)))};
  const int ranks = *rc::gen::inRange(1, 10);
  drawn.ranks = static_cast<std::size_t>(ranks);
  drawn.shards = ShardLayout::of(drawn.layout, ranks, drawn.options);
  return drawn;
}

/// Neighbours as one; empty ones are left out.
std::vector<Range> joined(const std::vector<Range>& ranges) {
  std::vector<Range> result;
  for (const Range& range : ranges) {
    if (range.size == 0) continue;
    if (!result.empty() && result.back().end() == range.offset)
      result.back().size += range.size;
    else
      result.push_back(range);
  }
  return result;
}

/// Cells of the flat array's grid that a range touches.
std::size_t cells(const Range& range) {
  return range.size == 0
             ? 0
             : kernels::sum_chunks(range.end()) - range.offset / kSumChunk;
}

std::size_t difference(const std::vector<std::size_t>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return *most - *least;
}

void expect_pieces(const Drawn& drawn) {
  std::vector<std::size_t> ends(drawn.ranks);
  for (const ShardBucket& bucket : drawn.shards.buckets()) {
    RC_ASSERT(bucket.pieces.size() == drawn.ranks);
    RC_ASSERT(bucket.positions == ends);
    std::size_t end = bucket.range.offset;
    for (std::size_t r = 0; r < drawn.ranks; ++r) {
      RC_ASSERT(bucket.pieces[r].offset == end);
      RC_ASSERT(bucket.pieces[r].size == bucket.counts.at(r));
      end = bucket.pieces[r].end();
      ends[r] += bucket.counts[r];
    }
    RC_ASSERT(end == bucket.range.end());
  }
  for (std::size_t r = 0; r < drawn.ranks; ++r)
    RC_ASSERT(drawn.shards.shard_size(static_cast<int>(r)) == ends[r]);
}

// Whoever reads a parameter's fragments in order has read it once and whole,
// and whoever reads a rank's has read its shard.
void expect_fragments(const Drawn& drawn) {
  std::size_t number = 0;
  const auto parameters = drawn.layout.parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    std::size_t end = 0;
    for (const Fragment& fragment : drawn.shards.fragments_of(p)) {
      RC_ASSERT(fragment.parameter == p);
      RC_ASSERT(fragment.range.offset == end);
      RC_ASSERT(fragment.range.size > 0u);
      end = fragment.range.end();
      ++number;
    }
    RC_ASSERT(end ==
              (drawn.includes(parameters[p].group) ? parameters[p].size : 0));
  }
  for (int rank = 0; rank < drawn.shards.ranks(); ++rank) {
    std::size_t end = 0;
    for (const Fragment& fragment : drawn.shards.fragments(rank)) {
      RC_ASSERT(fragment.owner == rank);
      RC_ASSERT(fragment.position == end);
      const auto all = drawn.shards.fragments_of(fragment.parameter);
      RC_ASSERT(std::find(all.begin(), all.end(), fragment) != all.end());
      end += fragment.range.size;
      --number;
    }
    RC_ASSERT(end == drawn.shards.shard_size(rank));
  }
  RC_ASSERT(number == 0u);
}

void expect_layouts_of_shards(const Drawn& drawn) {
  for (int rank = 0; rank < drawn.shards.ranks(); ++rank) {
    const auto fragments = drawn.shards.fragments(rank);
    const auto own = drawn.shards.layout_of_shard(drawn.layout, rank);
    RC_ASSERT(own.size() == drawn.shards.shard_size(rank));
    RC_ASSERT(own.num_groups() == drawn.layout.num_groups());
    RC_ASSERT(own.parameters().size() == fragments.size());
    for (std::size_t i = 0; i < fragments.size(); ++i) {
      RC_ASSERT(own.parameters()[i].offset == fragments[i].position);
      RC_ASSERT(own.parameters()[i].size == fragments[i].range.size);
      RC_ASSERT(own.parameters()[i].group ==
                drawn.layout.parameters()[fragments[i].parameter].group);
    }
  }
}

// Every included parameter once; kPerBucket: as they lie.
void expect_order(const Drawn& drawn) {
  std::vector<std::size_t> expected;
  for (std::size_t p = 0; p < drawn.layout.parameters().size(); ++p)
    if (drawn.includes(drawn.layout.parameters()[p].group))
      expected.push_back(p);
  std::vector<std::size_t> order(drawn.shards.order().begin(),
                                 drawn.shards.order().end());
  if (drawn.options.placement == Placement::kContiguous)
    std::sort(order.begin(), order.end());
  RC_ASSERT(order == expected);
}

void expect_one_owner_each(const Drawn& drawn) {
  expect_pieces(drawn);
  expect_fragments(drawn);
  expect_layouts_of_shards(drawn);
  expect_order(drawn);
}

RC_GTEST_PROP(PerBucket, GivesEveryElementOneOwnerAndPlace, ()) {
  expect_one_owner_each(draw(Placement::kPerBucket));
}

RC_GTEST_PROP(PerBucket, BucketsCoverWhatIsIncludedInOrder, ()) {
  const Drawn drawn = draw(Placement::kPerBucket);
  std::vector<Range> included, buckets;
  for (const Parameter& p : drawn.layout.parameters())
    if (drawn.includes(p.group)) included.push_back({p.offset, p.size});
  for (const ShardBucket& bucket : drawn.shards.buckets()) {
    RC_ASSERT(bucket.range.size > 0u);
    RC_ASSERT(bucket.range.size <=
              std::max(kSumChunk, drawn.options.bucket_elements));
    buckets.push_back(bucket.range);
  }
  RC_ASSERT(joined(buckets) == joined(included));
  if (drawn.options.bucket_elements > drawn.layout.size() + kSumChunk &&
      drawn.options.groups.empty())
    RC_ASSERT(buckets.size() <= 1u);
}

// An element belongs to the rank whose piece of the flat array holds it.
RC_GTEST_PROP(PerBucket, FragmentsArePartsOfPieces, ()) {
  const Drawn drawn = draw(Placement::kPerBucket);
  for (int rank = 0; rank < drawn.shards.ranks(); ++rank) {
    std::vector<Range> pieces, fragments;
    for (const ShardBucket& bucket : drawn.shards.buckets())
      pieces.push_back(bucket.pieces[static_cast<std::size_t>(rank)]);
    for (const Fragment& f : drawn.shards.fragments(rank))
      fragments.push_back(
          {drawn.layout.parameters()[f.parameter].offset + f.range.offset,
           f.range.size});
    RC_ASSERT(joined(fragments) == joined(pieces));
  }
}

RC_GTEST_PROP(PerBucket, CutsOnTheGridAlone, ()) {
  const Drawn drawn = draw(Placement::kPerBucket);
  for (std::size_t b = 0; b < drawn.shards.buckets().size(); ++b) {
    const ShardBucket& bucket = drawn.shards.buckets()[b];
    for (const Range& piece : bucket.pieces)
      RC_ASSERT(piece.offset % kSumChunk == 0u ||
                piece.offset == bucket.range.offset ||
                piece.offset == bucket.range.end());
    if (b > 0 &&
        drawn.shards.buckets()[b - 1].range.end() == bucket.range.offset) {
      const bool is_cut_between_parameters =
          drawn.layout.parameter_at(bucket.range.offset).offset ==
          bucket.range.offset;
      RC_ASSERT(bucket.range.offset % kSumChunk == 0u ||
                is_cut_between_parameters);
    }
    RC_ASSERT(bucket.slice == 0u);
    RC_ASSERT(drawn.shards.padding(b, 0) == 0u);
  }
}

// Pieces differ by one cell, of a bucket and of all together. In elements that
// is less than two: a piece may have a part of its first or last cell only,
// and both of one that has all.
RC_GTEST_PROP(PerBucket, LoadsAllRanksAlike, ()) {
  const Drawn drawn = draw(Placement::kPerBucket);
  std::vector<std::size_t> all(drawn.ranks);
  for (const ShardBucket& bucket : drawn.shards.buckets()) {
    std::vector<std::size_t> own;
    for (const Range& piece : bucket.pieces) own.push_back(cells(piece));
    for (std::size_t r = 0; r < drawn.ranks; ++r) all[r] += own[r];
    RC_ASSERT(difference(own) <= 1u);
    RC_ASSERT(difference(bucket.counts) < 2 * kSumChunk);
  }
  RC_ASSERT(difference(all) <= 1u);
}

RC_GTEST_PROP(Contiguous, GivesEveryElementOneOwnerAndPlace, ()) {
  expect_one_owner_each(draw(Placement::kContiguous));
}

RC_GTEST_PROP(Contiguous, SlicesAreEqualAndPadded, ()) {
  const Drawn drawn = draw(Placement::kContiguous);
  for (std::size_t b = 0; b < drawn.shards.buckets().size(); ++b) {
    const ShardBucket& bucket = drawn.shards.buckets()[b];
    RC_ASSERT(bucket.range.offset == 0u);
    RC_ASSERT(bucket.slice % 2 == 0u);
    RC_ASSERT(bucket.slice * drawn.ranks >= bucket.range.size);
    RC_ASSERT(bucket.slice * drawn.ranks < bucket.range.size + 2 * drawn.ranks);
    for (std::size_t r = 0; r < drawn.ranks; ++r) {
      const std::size_t left = r * bucket.slice;
      std::size_t expected = 0;
      if (bucket.range.size <= left)
        expected = bucket.slice;
      else if (bucket.range.size < left + bucket.slice)
        expected = left + bucket.slice - bucket.range.size;
      RC_ASSERT(drawn.shards.padding(b, static_cast<int>(r)) == expected);
      RC_ASSERT(bucket.counts[r] + expected == bucket.slice);
    }
  }
}

// An element's place among its group's, in the order asked for, names its
// owner: a slice after the other.
RC_GTEST_PROP(Contiguous, OwnersFollowFromPlacesInTheGroup, ()) {
  const Drawn drawn = draw(Placement::kContiguous);
  std::vector<std::size_t> before(drawn.ranks);  // of earlier groups
  std::size_t number = 0, next = 0;
  for (std::size_t group = 0; group < drawn.layout.num_groups(); ++group) {
    if (!drawn.includes(group)) continue;
    const ShardBucket& bucket = drawn.shards.buckets()[number++];
    std::size_t at = 0;
    while (next < drawn.shards.order().size()) {
      const std::size_t p = drawn.shards.order()[next];
      if (drawn.layout.parameters()[p].group != group) break;
      ++next;
      for (const Fragment& fragment : drawn.shards.fragments_of(p)) {
        const auto owner = static_cast<std::size_t>(fragment.owner);
        RC_ASSERT(at / bucket.slice == owner);
        RC_ASSERT((at + fragment.range.size - 1) / bucket.slice == owner);
        RC_ASSERT(fragment.position == before[owner] + at % bucket.slice);
        at += fragment.range.size;
      }
    }
    RC_ASSERT(at == bucket.range.size);
    for (std::size_t r = 0; r < drawn.ranks; ++r) before[r] += bucket.counts[r];
  }
  RC_ASSERT(number == drawn.shards.buckets().size());
  RC_ASSERT(next == drawn.shards.order().size());
}

}  // namespace
}  // namespace thinwire::zero::shard_layout_test
