// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "thinwire/kernels/norm.h"
#include "thinwire/zero/shard_layout.h"

namespace thinwire::zero::shard_layout_property_test {
namespace {

using kernels::kSumChunk;

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
}  // namespace thinwire::zero::shard_layout_property_test
