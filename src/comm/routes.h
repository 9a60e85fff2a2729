// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"

namespace thinwire::comm {

/// Largest number of bytes of other ranks' values held at a time. This is
/// little enough to be added from the cache, and enough to hide the latency. It
/// is a little over 4 MiB because a bucket's pieces differ by a block. Up to 16
/// ranks can therefore process the longest part of 2^20 elements in one round.
inline constexpr std::size_t kScratchBytes =
    (std::size_t{4} << 20) + (64 << 10);

/// Largest gather whose cost depends on the number of messages, so that it
/// takes steps among more ranks than kFewRanks.
inline constexpr std::size_t kSmallBytes = std::size_t{64} << 10;
inline constexpr int kFewRanks = 8;

/// Divides [0, size) into `parts` ranges, of which the first size % parts are
/// longer by one element.
[[nodiscard]] std::vector<Range> equal_ranges(std::size_t size, int parts);
/// Returns adjacent ranges of these sizes.
[[nodiscard]] std::vector<Range> ranges_of(std::span<const std::size_t> sizes);

/// Reorders the ranges of places by rank.
[[nodiscard]] std::vector<Range> by_rank(std::span<const Range> places,
                                         std::span<const int> rank_at_place);

/// Number of messages that one rank sends, and their bytes.
struct Sent {
  std::uint64_t bytes = 0;
  std::uint64_t messages = 0;

  bool operator==(const Sent&) const = default;
};

/// Cost of one rank's messages in collectives.
struct Cost {
  Sent between_hosts;
  Sent inside_hosts;
  /// Number of rounds of consecutive messages. In some of them this rank may
  /// have nothing to send.
  std::uint64_t rounds = 0;

  [[nodiscard]] std::uint64_t bytes_sent() const noexcept {
    return between_hosts.bytes + inside_hosts.bytes;
  }
  [[nodiscard]] std::uint64_t messages() const noexcept {
    return between_hosts.messages + inside_hosts.messages;
  }
  /// Adds `times` times the cost `more`.
  void add(const Cost& more, std::uint64_t times = 1) noexcept;
  Cost& operator+=(const Cost& more) noexcept {
    add(more);
    return *this;
  }
  bool operator==(const Cost&) const = default;
};

/// Some ranks of the group, including this one, in the order in which their
/// values are added.
struct Peers {
  std::vector<int> ranks;
  std::size_t self = 0;  ///< Index of this rank in `ranks`.
};

/// Peers that send directly to each other, and the ranges of an array that
/// belong to them. A reduction sends ranges[i] from all peers to peer i. A
/// gather sends it from peer i to all.
struct Leg {
  const Peers* peers = nullptr;
  std::vector<Range> ranges;
  /// Longest range of this leg on any rank of the group. It determines the
  /// number of exchanges on all of them.
  std::size_t longest = 0;

  [[nodiscard]] Range own() const { return ranges[peers->self]; }
};

/// Legs of a collective. A reduction runs them from the inside outwards, and a
/// gather in the opposite order.
struct Legs {
  std::vector<Leg> inside;  ///< Empty if flat.
  Leg across;               ///< Among all ranks, or between hosts.
};

/// Returns the leg for an array that holds only these ranges, one after the
/// other.
[[nodiscard]] Leg packed(Leg leg);

/// Parts in which a leg is reduced, so that the other ranks' values fit the
/// scratch memory.
struct Blocks {
  Blocks(const Leg& leg, std::size_t element_bytes);
  std::size_t elements = 0;  ///< Elements of each range in one block.
  std::size_t stride = 0;    ///< Bytes from one peer's slot to the next.
};

/// One step of a gather with Bruck's algorithm. This rank sends the values of
/// `count` ranks, counted cyclically from itself, to rank `to`. It receives the
/// same number of values from rank `from`, counted from that rank.
struct BruckStep {
  int to = 0;
  int from = 0;
  int count = 0;
};

/// Decides between which ranks the collectives of one rank send: directly to
/// every other rank, or hierarchically.
class Routes {
 public:
  /// Unless `by_host`, all collectives are direct, and hosts only determine
  /// which bytes leave a host.
  Routes(int rank, int size, const Hosts& hosts, bool by_host = true);
  Routes(const Routes&) = delete;
  Routes& operator=(const Routes&) = delete;
  /// Makes these the routes of another rank of the group.
  void become(int rank, int host, int local_rank);

  /// Returns the legs of a collective in which rank r has pieces[r]. In
  /// hierarchical mode a local rank handles the pieces of its counterparts on
  /// all hosts. This requires one leg if these pieces are neighbours for every
  /// local rank, and otherwise one leg per host.
  [[nodiscard]] Legs legs(std::span<const Range> pieces) const;
  /// Cuts the array of an all-reduce so that a host's sums fit the scratch
  /// memory.
  [[nodiscard]] std::vector<Range> slices(std::size_t size,
                                          std::size_t sum_bytes) const;
  /// Cuts `slice` into nearly equal pieces by rank, in the order of places.
  [[nodiscard]] std::vector<Range> pieces(Range slice) const;
  /// Returns the legs of a gather of `bytes` bytes in all. Small gathers are
  /// direct even between hosts, because latency costs more than bandwidth.
  [[nodiscard]] Legs gather_legs(std::span<const Range> places,
                                 std::size_t bytes) const;
  /// Returns whether a gather of `bytes` bytes uses bruck_steps() instead.
  [[nodiscard]] bool takes_steps(std::size_t bytes) const noexcept;
  [[nodiscard]] std::vector<BruckStep> bruck_steps() const;

  // ---- cost of collectives on this rank; sizes of elements in bytes
  [[nodiscard]] Cost message(int peer, std::size_t bytes) const;
  [[nodiscard]] Cost of_all_reduce(std::size_t size, std::size_t element,
                                   std::size_t sum) const;
  [[nodiscard]] Cost of_reduce_scatter(std::span<const Range> pieces,
                                       std::size_t element,
                                       std::size_t sum) const;
  [[nodiscard]] Cost of_all_gather(std::span<const Range> places,
                                   std::size_t element) const;
  /// Returns the cost of sending sent[r] to each rank r. Counts one round if
  /// any range is not empty.
  [[nodiscard]] Cost of_all_to_all(std::span<const Range> sent,
                                   std::size_t element) const;

 private:
  [[nodiscard]] Legs flat(std::span<const Range> pieces) const;
  [[nodiscard]] std::vector<Leg> inside(std::span<const Range> pieces) const;
  [[nodiscard]] Leg between(std::span<const Range> pieces) const;
  [[nodiscard]] Cost of_reduction(const Leg& leg, std::size_t element) const;
  [[nodiscard]] Cost of_reduction(const Legs& parts, std::size_t element,
                                  std::size_t sum) const;
  [[nodiscard]] Cost of_gather(const Leg& leg, std::size_t element) const;
  [[nodiscard]] Cost of_gather(const Legs& parts, std::size_t element) const;
  [[nodiscard]] bool is_adjacent(std::span<const Range> pieces) const;
  [[nodiscard]] std::size_t rank_at(int host, int local_rank) const;

  const Hosts hosts_;
  int rank_ = 0;
  const int size_;
  const bool by_host_;        // several hosts with several ranks each
  std::vector<int> host_of_;  // of every rank
  Peers everyone_;
  Peers inside_;
  Peers between_;
};

/// Routes of one rank without a communicator: among all ranks, and in the
/// groups that split_by_host() would create.
struct RankRoutes {
  /// `hosts` are all hosts as this rank sees them. Unless `by_host`, the rank
  /// sends directly and has no groups.
  RankRoutes(const Hosts& hosts, bool by_host);

  /// Makes these the routes of the rank at another place.
  void become(std::size_t other);

  std::vector<int> rank_at_place;
  std::size_t place;    ///< Place of this rank.
  std::size_t workers;  ///< Ranks of `between`.
  Routes whole;
  Routes between;  ///< Equals `whole` if the rank sends directly.
  Routes inside;   ///< Only this rank if it sends directly.

 private:
  RankRoutes(const Hosts& hosts, bool by_host, int rank, int size);
};

}  // namespace thinwire::comm
