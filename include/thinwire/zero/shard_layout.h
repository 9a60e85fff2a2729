// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"

namespace thinwire::zero {

/// Which rank owns which elements.
enum class Placement {
  /// The flat array is cut into buckets, every bucket into as many nearly equal
  /// pieces as there are ranks: every bucket's reduction loads all links alike,
  /// and the owner of piece j is the server of chunk j in a compressed
  /// exchange.
  kPerBucket,
  /// DeepSpeed's: every group, one parameter after the other and padded, is cut
  /// into equal slices.
  kContiguous,
};

struct ShardLayoutOptions {
  Placement placement = Placement::kPerBucket;
  /// kPerBucket: most elements of a bucket, >= 1; rounded down to the grid of
  /// sums (kernels::kSumChunk), but at least one of its cells.
  std::size_t bucket_elements = std::size_t{4} << 20;
  /// kContiguous: parameters in the order of their index modulo the ranks.
  bool round_robin = false;
  /// kPerBucket: where hosts are not flat, a bucket's pieces lie in the order
  /// of places: those of local rank 0 of all hosts, then of local rank 1, ...
  comm::Hosts hosts{};
  /// The layout's groups that are sharded over these ranks; empty: all.
  std::vector<std::size_t> groups{};
  /// kPerBucket: only parameters that begin in these elements; of size 0: all.
  Range part{};
};

/// Neighbouring elements of one parameter with one owner.
struct Fragment {
  int owner = 0;
  std::size_t parameter = 0;  ///< Index in the layout.
  Range range{};              ///< Within the parameter.
  std::size_t position = 0;   ///< Of its first element in the owner's shard.

  bool operator==(const Fragment&) const = default;
};

/// What is reduced, and gathered, in one collective.
struct ShardBucket {
  /// kPerBucket: of the flat array. kContiguous: of the group's own flat order,
  /// all of it, without padding.
  Range range{};
  /// One per rank: together `range`, in the order of owners().
  std::vector<Range> pieces{};
  std::vector<Range> within{};  ///< The same, from the bucket's beginning on.
  std::vector<std::size_t> counts{};     ///< The pieces' sizes.
  std::vector<std::size_t> positions{};  ///< Of the pieces in their shards.
  /// kContiguous: elements of a slice, its padding included; else 0.
  std::size_t slice = 0;
};

/// How the elements of a model are shared out over ranks. A rank's shard is its
/// pieces of all buckets, one after the other; padding is in nobody's shard.
/// What is saved speaks of parameters and fragments, never of placements.
class ShardLayout {
 public:
  /// Throws Error(kInvalidArgument) unless ranks >= 1, and if the layout has
  /// no such group, or hosts are not of so many ranks.
  [[nodiscard]] static ShardLayout of(const ParameterLayout& layout, int ranks,
                                      const ShardLayoutOptions& options = {});

  [[nodiscard]] int ranks() const noexcept { return ranks_; }
  /// The rank at each place: the order in which a bucket's pieces lie.
  [[nodiscard]] std::span<const int> owners() const noexcept { return owners_; }
  [[nodiscard]] std::span<const ShardBucket> buckets() const noexcept {
    return buckets_;
  }
  /// Elements that a rank owns.
  [[nodiscard]] std::size_t shard_size(int rank) const {
    return shard_sizes_.at(static_cast<std::size_t>(rank));
  }
  /// A rank's shard in its order.
  [[nodiscard]] std::vector<Fragment> fragments(int rank) const;
  /// The fragments of a parameter in the parameter's order.
  [[nodiscard]] std::span<const Fragment> fragments_of(
      std::size_t parameter) const {
    return fragments_.at(parameter);
  }
  /// Parameters in the order in which they lie in their buckets.
  [[nodiscard]] std::span<const std::size_t> order() const noexcept {
    return order_;
  }
  /// kContiguous: elements of padding at the end of a rank's slice; else 0.
  [[nodiscard]] std::size_t padding(std::size_t bucket, int rank) const;

  /// The fragments of a rank as parameters of a layout of their own, in the
  /// shard's order, with the groups of `layout`: what a rule is made for.
  [[nodiscard]] ParameterLayout layout_of_shard(const ParameterLayout& layout,
                                                int rank) const;
  /// One line per bucket; before them, who has which place, unless that is the
  /// order of ranks.
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
