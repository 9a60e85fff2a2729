// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"

namespace thinwire::comm {

/// Most bytes of other ranks' values held at a time. They are few enough to be
/// added while the cache has them, and enough to hide the latency. The size is
/// a little over 4 MiB because a bucket's pieces differ by a block. So up to 16
/// ranks handle the longest part of 2^20 elements in one round.
inline constexpr std::size_t kScratchBytes =
    (std::size_t{4} << 20) + (64 << 10);

/// Gathers of no more bytes are bound by the number of messages: over more
/// ranks than these they take steps.
inline constexpr std::size_t kSmallBytes = std::size_t{64} << 10;
inline constexpr int kFewRanks = 8;

/// [0, size) in `parts` ranges of which the first size % parts are longer by
/// one element.
[[nodiscard]] std::vector<Range> equal_ranges(std::size_t size, int parts);
/// Ranges of these sizes, one after the other.
[[nodiscard]] std::vector<Range> ranges_of(std::span<const std::size_t> sizes);

/// Returns the ranges of places in the order of ranks.
[[nodiscard]] std::vector<Range> by_rank(std::span<const Range> places,
                                         std::span<const int> rank_at_place);

/// Messages of one rank, and their bytes.
struct Sent {
  std::uint64_t bytes = 0;
  std::uint64_t messages = 0;

  bool operator==(const Sent&) const = default;
};

/// Messages of one rank in collectives.
struct Cost {
  Sent between_hosts;
  Sent inside_hosts;
  /// Rounds of messages that follow one another, in any of which this rank may
  /// have nothing to send.
  std::uint64_t rounds = 0;

  [[nodiscard]] std::uint64_t bytes_sent() const noexcept {
    return between_hosts.bytes + inside_hosts.bytes;
  }
  [[nodiscard]] std::uint64_t messages() const noexcept {
    return between_hosts.messages + inside_hosts.messages;
  }
  /// Adds `times` times as much.
  void add(const Cost& more, std::uint64_t times = 1) noexcept;
  Cost& operator+=(const Cost& more) noexcept {
    add(more);
    return *this;
  }
  bool operator==(const Cost&) const = default;
};

/// Some ranks of the group, this one among them, in the order of their values
/// in sums.
struct Peers {
  std::vector<int> ranks;
  std::size_t self = 0;  ///< This rank's index among them.
};

/// Peers that send straight to each other, and what is whose of an array. In a
/// reduction ranges[i] goes to peer i, from all; in a gather it comes from peer
/// i, to all.
struct Leg {
  const Peers* peers = nullptr;
  std::vector<Range> ranges;
  /// The longest range of this leg on any rank of the group: all of them take
  /// as many exchanges.
  std::size_t longest = 0;

  [[nodiscard]] Range own() const { return ranges[peers->self]; }
};

/// The legs of a collective: a reduction takes them from the inside outwards, a
/// gather the other way round.
struct Legs {
  std::vector<Leg> inside;  ///< Empty where flat.
  Leg across;               ///< Among all ranks, or between hosts.
};

/// Returns the leg for an array that holds these ranges alone, one after the
/// other.
[[nodiscard]] Leg packed(Leg leg);

/// In which parts a leg's reduction is done, so that what others send fits the
/// scratch memory.
struct Blocks {
  Blocks(const Leg& leg, std::size_t element_bytes);
  std::size_t elements = 0;  ///< Elements of each range at a time.
  std::size_t stride = 0;    ///< Bytes from one peer's slot to the next.
};

/// One step of a gather by Bruck's algorithm. This rank sends the values of
/// `count` ranks to rank `to`, counted cyclically from its own. It receives as
/// many from rank `from`, counted from that rank.
struct BruckStep {
  int to = 0;
  int from = 0;
  int count = 0;
};

/// Decides who sends what to whom in the collectives of one rank: directly to
/// every other rank, or hierarchically.
class Routes {
 public:
  /// Unless `by_host`, all collectives go directly, and hosts only tell what
  /// leaves them.
  Routes(int rank, int size, const Hosts& hosts, bool by_host = true);
  Routes(const Routes&) = delete;
  Routes& operator=(const Routes&) = delete;
  /// Makes these the routes of another rank of the group.
  void become(int rank, int host, int local_rank);

  /// Returns the legs of a collective in which rank r has pieces[r]. In
  /// hierarchical mode a local rank handles the pieces of its counterparts on
  /// all hosts. That takes one leg if these pieces are neighbours for every
  /// local rank, and otherwise one leg per host.
  [[nodiscard]] Legs legs(std::span<const Range> pieces) const;
  /// An all-reduce's array, cut so that a host's sums fit the scratch memory.
  [[nodiscard]] std::vector<Range> slices(std::size_t size,
                                          std::size_t sum_bytes) const;
  /// Nearly equal pieces of `slice` by rank, in the order of places.
  [[nodiscard]] std::vector<Range> pieces(Range slice) const;
  /// Returns the legs of a gather of `bytes` bytes in all. Few bytes go
  /// directly whatever the hosts are, because latency then costs more than
  /// bandwidth.
  [[nodiscard]] Legs gather_legs(std::span<const Range> places,
                                 std::size_t bytes) const;
  /// Whether such a gather takes bruck_steps() instead.
  [[nodiscard]] bool takes_steps(std::size_t bytes) const noexcept;
  [[nodiscard]] std::vector<BruckStep> bruck_steps() const;

  // ---- what this rank sends in collectives; sizes of elements in bytes
  [[nodiscard]] Cost message(int peer, std::size_t bytes) const;
  [[nodiscard]] Cost of_all_reduce(std::size_t size, std::size_t element,
                                   std::size_t sum) const;
  [[nodiscard]] Cost of_reduce_scatter(std::span<const Range> pieces,
                                       std::size_t element,
                                       std::size_t sum) const;
  [[nodiscard]] Cost of_all_gather(std::span<const Range> places,
                                   std::size_t element) const;
  /// Returns the cost of sending a range of `sent` to each rank. It counts a
  /// round if any is not empty.
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
  const bool by_host_;        // several hosts of several ranks
  std::vector<int> host_of_;  // of every rank
  Peers everyone_;
  Peers inside_;
  Peers between_;
};

/// Routes of one rank, without a communicator: among all ranks, and in the
/// groups that split_by_host() gives it.
struct RankRoutes {
  /// `hosts` are all hosts, as this rank sees them. Unless `by_host`, the rank
  /// goes directly, and has no groups.
  RankRoutes(const Hosts& hosts, bool by_host);

  /// Makes these the routes of the rank at another place.
  void become(std::size_t other);

  std::vector<int> rank_at_place;
  std::size_t place;    ///< This rank's.
  std::size_t workers;  ///< Ranks of `between`.
  Routes whole;
  Routes between;  ///< Same as `whole` if the rank goes directly.
  Routes inside;   ///< This rank alone if it goes directly.

 private:
  RankRoutes(const Hosts& hosts, bool by_host, int rank, int size);
};

}  // namespace thinwire::comm
