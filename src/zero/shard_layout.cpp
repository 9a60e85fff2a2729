// SPDX-License-Identifier: Apache-2.0
#include "thinwire/zero/shard_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/require.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/kernels/norm.h"
#include "zero/cut_on_grid.h"

namespace thinwire::zero {

using kernels::kSumChunk;

namespace {

// Slices of 16-bit values begin on multiples of 4 bytes.
constexpr std::size_t kSliceAlignment = 2;

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

bool is_included(const ShardLayoutOptions& options, std::size_t group) {
  const auto& groups = options.groups;
  return groups.empty() ||
         std::find(groups.begin(), groups.end(), group) != groups.end();
}

bool is_included(const ShardLayoutOptions& options, const Parameter& p) {
  const Range& part = options.part;
  const bool begins_in_part = p.offset >= part.offset && p.offset < part.end();
  return is_included(options, p.group) && (part.size == 0 || begins_in_part);
}

// Returns the rank that owns each piece. If hosts are flat, pieces are in the
// order of ranks.
std::vector<int> owners_of(int ranks, const comm::Hosts& hosts) {
  if (hosts.is_flat()) return comm::ranks_by_place({.size = ranks});
  require(hosts.ranks.size() == static_cast<std::size_t>(ranks), "hosts",
          fmt::format("of {} ranks", ranks), hosts.ranks.size());
  return comm::ranks_by_place(hosts);
}

}  // namespace

std::vector<Range> cut_on_grid(Range range, std::size_t ranks,
                               std::size_t& turn) {
  const std::size_t first = range.offset / kSumChunk;
  const std::size_t cells = kernels::sum_chunks(range.end()) - first;
  const std::size_t left_over = cells % ranks;
  std::vector<Range> pieces;
  std::size_t cell = first, begin = range.offset;
  for (std::size_t r = 0; r < ranks; ++r) {
    cell += cells / ranks + ((r + ranks - turn) % ranks < left_over ? 1 : 0);
    const std::size_t end =
        std::clamp(cell * kSumChunk, range.offset, range.end());
    pieces.push_back({begin, end - begin});
    begin = end;
  }
  turn = (turn + left_over) % ranks;
  return pieces;
}

ShardLayout ShardLayout::of(const ParameterLayout& layout, int ranks,
                            const ShardLayoutOptions& options) {
  require(ranks >= 1, "ranks", ">= 1", ranks);
  require(options.bucket_elements >= 1, "bucket_elements", ">= 1",
          options.bucket_elements);
  for (const std::size_t group : options.groups)
    require(group < layout.num_groups(), "groups",
            fmt::format("below {}", layout.num_groups()), group);
  ShardLayout shards;
  shards.ranks_ = ranks;
  const bool by_place = options.placement == Placement::kPerBucket;
  shards.owners_ = owners_of(ranks, by_place ? options.hosts : comm::Hosts{});
  shards.shard_sizes_.resize(static_cast<std::size_t>(ranks));
  shards.fragments_.resize(layout.parameters().size());
  if (options.placement == Placement::kPerBucket)
    shards.cut_per_bucket(layout, options);
  else
    shards.cut_into_slices(layout, options);
  return shards;
}

void ShardLayout::cut_per_bucket(const ParameterLayout& layout,
                                 const ShardLayoutOptions& options) {
  const auto parameters = layout.parameters();
  const std::size_t most =
      std::max(options.bucket_elements / kSumChunk * kSumChunk, kSumChunk);
  std::size_t turn = 0;
  for (std::size_t i = 0; i < parameters.size();) {
    if (!is_included(options, parameters[i])) {
      ++i;
      continue;
    }
    const std::size_t first_parameter = i;
    const std::size_t first_bucket = buckets_.size();
    const std::size_t begin = parameters[i].offset;
    for (; i < parameters.size() && is_included(options, parameters[i]); ++i)
      order_.push_back(i);
    const std::size_t end = parameters[i - 1].offset + parameters[i - 1].size;
    for (std::size_t at = begin; at < end;) {
      const std::size_t next =
          end - at <= most ? end : (at + most) / kSumChunk * kSumChunk;
      const Range range{at, next - at};
      const auto places =
          cut_on_grid(range, static_cast<std::size_t>(ranks_), turn);
      std::vector<Range> pieces(places.size());
      for (std::size_t place = 0; place < places.size(); ++place)
        pieces[static_cast<std::size_t>(owners_[place])] = places[place];
      add_bucket({.range = range, .pieces = std::move(pieces)});
      at = next;
    }
    for (std::size_t p = first_parameter; p < i; ++p)
      find_fragments(layout, p, first_bucket, parameters[p].offset);
  }
}

void ShardLayout::cut_into_slices(const ParameterLayout& layout,
                                  const ShardLayoutOptions& options) {
  const auto parameters = layout.parameters();
  const auto ranks = static_cast<std::size_t>(ranks_);
  for (std::size_t group = 0; group < layout.num_groups(); ++group) {
    if (!is_included(options, group)) continue;
    std::vector<std::size_t> members;
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].group == group) members.push_back(i);
    std::vector<std::size_t> order;
    const std::size_t stride = options.round_robin ? ranks : 1;
    for (std::size_t from = 0; from < stride; ++from)
      for (std::size_t i = from; i < members.size(); i += stride)
        order.push_back(members[i]);

    std::size_t total = 0;
    for (const std::size_t p : order) total += parameters[p].size;
    ShardBucket bucket{.range = {0, total}};
    bucket.slice = round_up(total, kSliceAlignment * ranks) / ranks;
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::size_t begin = std::min(r * bucket.slice, total);
      bucket.pieces.push_back(
          {begin, std::min(begin + bucket.slice, total) - begin});
    }
    const std::size_t number = buckets_.size();
    add_bucket(std::move(bucket));
    std::size_t offset = 0;
    for (const std::size_t p : order) {
      find_fragments(layout, p, number, offset);
      offset += parameters[p].size;
      order_.push_back(p);
    }
  }
}

void ShardLayout::add_bucket(ShardBucket bucket) {
  for (std::size_t r = 0; r < bucket.pieces.size(); ++r) {
    const Range& piece = bucket.pieces[r];
    bucket.within.push_back({piece.offset - bucket.range.offset, piece.size});
    bucket.counts.push_back(piece.size);
    bucket.positions.push_back(shard_sizes_[r]);
    shard_sizes_[r] += bucket.pieces[r].size;
  }
  buckets_.push_back(std::move(bucket));
}

// Finds the fragments of a parameter. `offset` counts elements from the start
// of bucket `first_bucket` through the adjacent buckets.
void ShardLayout::find_fragments(const ParameterLayout& layout,
                                 std::size_t parameter,
                                 std::size_t first_bucket, std::size_t offset) {
  const Range whole{offset, layout.parameters()[parameter].size};
  for (std::size_t b = first_bucket; b < buckets_.size(); ++b) {
    const ShardBucket& bucket = buckets_[b];
    if (bucket.range.end() <= whole.offset) continue;
    if (bucket.range.offset >= whole.end()) break;
    for (const int owner : owners_) {
      const auto r = static_cast<std::size_t>(owner);
      const Range& piece = bucket.pieces[r];
      const std::size_t begin = std::max(piece.offset, whole.offset);
      const std::size_t end = std::min(piece.end(), whole.end());
      if (begin >= end) continue;
      fragments_[parameter].push_back(
          {.owner = owner,
           .parameter = parameter,
           .range = {begin - whole.offset, end - begin},
           .position = bucket.positions[r] + (begin - piece.offset)});
    }
  }
}

std::vector<Fragment> ShardLayout::fragments(int rank) const {
  require(rank >= 0 && rank < ranks_, "rank", fmt::format("below {}", ranks_),
          rank);
  std::vector<Fragment> own;
  for (const auto& of_parameter : fragments_)
    for (const Fragment& fragment : of_parameter)
      if (fragment.owner == rank) own.push_back(fragment);
  std::sort(own.begin(), own.end(), [](const Fragment& a, const Fragment& b) {
    return a.position < b.position;
  });
  return own;
}

std::size_t ShardLayout::padding(std::size_t bucket, int rank) const {
  const ShardBucket& of = buckets_.at(bucket);
  return of.slice == 0
             ? 0
             : of.slice - of.counts.at(static_cast<std::size_t>(rank));
}

ParameterLayout ShardLayout::layout_of_shard(const ParameterLayout& layout,
                                             int rank) const {
  std::vector<ParameterSpec> specs;
  for (const Fragment& fragment : fragments(rank)) {
    const Parameter& whole = layout.parameters()[fragment.parameter];
    specs.push_back(
        {.name = fmt::format("{}[{}:{}]", whole.name, fragment.range.offset,
                             fragment.range.end()),
         .shape = {fragment.range.size},
         .group = whole.group});
  }
  return ParameterLayout::of(std::move(specs), layout.num_groups());
}

std::string ShardLayout::describe() const {
  std::string text;
  if (!std::is_sorted(owners_.begin(), owners_.end()))
    text += fmt::format("places of ranks {}\n", fmt::join(owners_, " "));
  for (const ShardBucket& bucket : buckets_)
    text += fmt::format("bucket {}+{} in {}\n", bucket.range.offset,
                        bucket.range.size, fmt::join(bucket.counts, " "));
  return text;
}

}  // namespace thinwire::zero
