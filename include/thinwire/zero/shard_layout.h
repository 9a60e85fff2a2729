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
  /// Cuts the flat array into buckets, and every bucket into as many nearly
  /// equal pieces as there are ranks. Every bucket's reduction thus loads all
  /// links alike. The owner of piece j is the server of chunk j in a compressed
  /// exchange.
  kPerBucket,
  /// DeepSpeed's: cuts every group, its parameters one after the other and
  /// padded, into equal slices.
  kContiguous,
};

struct ShardLayoutOptions {
  Placement placement = Placement::kPerBucket;
  /// kPerBucket: most elements of a bucket, >= 1. They are rounded down to the
  /// grid of sums (kernels::kSumChunk), to one of its cells at least.
  std::size_t bucket_elements = std::size_t{4} << 20;
  /// kContiguous: whether parameters are ordered by their index modulo the
  /// ranks.
  bool round_robin = false;
  /// kPerBucket: if hosts are not flat, a bucket's pieces are ordered by place.
  /// The pieces of local rank 0 of all hosts come first.
  comm::Hosts hosts{};
  /// Groups of the layout that are sharded over these ranks; empty for all.
  std::vector<std::size_t> groups{};
  /// kPerBucket: only parameters that begin in these elements; of size 0 for
  /// all.
  Range part{};
};

/// Neighbouring elements of one parameter with one owner.
struct Fragment {
  int owner = 0;
  std::size_t parameter = 0;  ///< Index in the layout.
  Range range{};              ///< Within the parameter.
  std::size_t position = 0;   ///< Index of the first in the owner's shard.

  bool operator==(const Fragment&) const = default;
};

/// Elements that are reduced, and gathered, in one collective.
struct ShardBucket {
  /// kPerBucket: a range of the flat array. kContiguous: the whole of the
  /// group's own flat order, without padding.
  Range range{};
  /// Pieces, one per rank, that make up `range` in the order of owners().
  std::vector<Range> pieces{};
  std::vector<Range> within{};  ///< Pieces, counted from the bucket's start.
  std::vector<std::size_t> counts{};     ///< The pieces' sizes.
  std::vector<std::size_t> positions{};  ///< The pieces' in their shards.
  /// kContiguous: elements of a slice, including its padding. Otherwise 0.
  std::size_t slice = 0;
};

/// Distribution of a model's elements over ranks. A rank's shard is its pieces
/// of all buckets, one after the other; padding is in no shard. Saved states
/// refer to parameters and fragments, never to placements.
class ShardLayout {
 public:
  /// Returns the layout of the shards. Throws Error(kInvalidArgument) unless
  /// ranks >= 1, the layout has the groups, and the hosts are those of so many
  /// ranks.
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
  /// shard's order, with the groups of `layout`. Update rules are made for it.
  [[nodiscard]] ParameterLayout layout_of_shard(const ParameterLayout& layout,
                                                int rank) const;
  /// Returns one line per bucket. Unless ranks are in order, the places of
  /// ranks come before them.
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
