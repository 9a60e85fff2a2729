// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"

namespace thinwire::zero {

/// Assignment of elements to ranks.
enum class Placement {
  /// Cuts the flat array into buckets, and every bucket into one piece per
  /// rank. The pieces are nearly equal, so that every bucket's reduction loads
  /// all links evenly. The owner of piece j is the server of chunk j in a
  /// compressed exchange.
  kPerBucket,
  /// DeepSpeed's placement. Concatenates the parameters of each group, pads the
  /// result, and cuts it into equal slices.
  kContiguous,
};

struct ShardLayoutOptions {
  Placement placement = Placement::kPerBucket;
  /// kPerBucket: the largest number of elements of a bucket, >= 1. It is
  /// rounded down to a multiple of kernels::kSumChunk, but is at least
  /// kSumChunk.
  std::size_t bucket_elements = std::size_t{4} << 20;
  /// kContiguous: whether parameters are ordered by their index in the group
  /// modulo the number of ranks.
  bool round_robin = false;
  /// kPerBucket: if hosts are not flat, a bucket's pieces are ordered by place.
  /// The pieces of local rank 0 of all hosts come first.
  comm::Hosts hosts{};
  /// Groups of the layout that are sharded over these ranks; empty for all.
  std::vector<std::size_t> groups{};
  /// kPerBucket: a range of the flat array. Only parameters that begin in it
  /// are sharded. An empty range selects all.
  Range part{};
};

/// Adjacent elements of one parameter with one owner.
struct Fragment {
  int owner = 0;
  std::size_t parameter = 0;  ///< Index in the layout.
  Range range{};              ///< Within the parameter.
  std::size_t position = 0;   ///< First element in the owner's shard.

  bool operator==(const Fragment&) const = default;
};

/// Elements that are reduced and gathered in one collective.
struct ShardBucket {
  /// kPerBucket: a range of the flat array. kContiguous: all elements of the
  /// group, in the group's order and without padding.
  Range range{};
  /// Pieces by rank. In the order of owners() they form `range`.
  std::vector<Range> pieces{};
  std::vector<Range> within{};  ///< Pieces relative to the bucket's start.
  std::vector<std::size_t> counts{};     ///< The pieces' sizes.
  std::vector<std::size_t> positions{};  ///< Offsets in their shards.
  /// kContiguous: elements of a slice, including its padding. Otherwise 0.
  std::size_t slice = 0;
};

/// Distribution of a model's elements over ranks. A rank's shard consists of
/// its pieces of all buckets, one after the other, without padding. Saved
/// states refer to parameters and fragments, never to placements.
class ShardLayout {
 public:
  /// Returns the layout of the shards. Throws Error(kInvalidArgument) unless
  /// ranks >= 1 and bucket_elements >= 1. Also throws if the layout lacks a
  /// group named in the options, or if the hosts have another number of ranks.
  [[nodiscard]] static ShardLayout of(const ParameterLayout& layout, int ranks,
                                      const ShardLayoutOptions& options = {});

  [[nodiscard]] int ranks() const noexcept { return ranks_; }
  /// Returns the rank at each place, in the order of a bucket's pieces.
  [[nodiscard]] std::span<const int> owners() const noexcept { return owners_; }
  [[nodiscard]] std::span<const ShardBucket> buckets() const noexcept {
    return buckets_;
  }
  /// Returns the number of elements that a rank owns.
  [[nodiscard]] std::size_t shard_size(int rank) const {
    return shard_sizes_.at(static_cast<std::size_t>(rank));
  }
  /// Returns a rank's fragments in the order of its shard.
  [[nodiscard]] std::vector<Fragment> fragments(int rank) const;
  /// Returns the fragments of a parameter in the parameter's order.
  [[nodiscard]] std::span<const Fragment> fragments_of(
      std::size_t parameter) const {
    return fragments_.at(parameter);
  }
  /// Returns the parameters in the order in which they lie in their buckets.
  [[nodiscard]] std::span<const std::size_t> order() const noexcept {
    return order_;
  }
  /// Returns the elements of padding at the end of a rank's slice with
  /// kContiguous, otherwise 0.
  [[nodiscard]] std::size_t padding(std::size_t bucket, int rank) const;

  /// Returns a layout whose parameters are the fragments of a rank, in the
  /// shard's order, with the groups of `layout`. Update rules are created for
  /// this layout.
  [[nodiscard]] ParameterLayout layout_of_shard(const ParameterLayout& layout,
                                                int rank) const;
  /// Returns one line per bucket. If owners() is not in the order of ranks, the
  /// first line lists it.
  [[nodiscard]] std::string describe() const;

 private:
  void cut_per_bucket(const ParameterLayout& layout,
                      const ShardLayoutOptions& options);
  void cut_into_slices(const ParameterLayout& layout,
                       const ShardLayoutOptions& options);
  void add_bucket(ShardBucket bucket);
  void find_fragments(const ParameterLayout& layout, std::size_t parameter,
                      std::size_t first_bucket, std::size_t offset);

  int ranks_ = 1;
  std::vector<int> owners_;
  std::vector<ShardBucket> buckets_;
  std::vector<std::size_t> shard_sizes_;
  std::vector<std::vector<Fragment>> fragments_;  // per parameter
  std::vector<std::size_t> order_;
};

}  // namespace thinwire::zero
