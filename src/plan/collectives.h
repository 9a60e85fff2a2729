// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "thinwire/plan/planner.h"

/// Counts the exact traffic of collectives on the communicator's routes, as a
/// mean over ranks.
namespace thinwire::plan {

[[nodiscard]] Traffic operator+(const Traffic& a, const Traffic& b);
[[nodiscard]] Traffic operator*(const Traffic& a, double factor);

/// Each rank's piece of an array, in the order of the group.
using Pieces = std::vector<double>;

/// Returns the pieces times a factor.
[[nodiscard]] Pieces times(std::span<const double> pieces, double factor);
/// Returns nearly equal pieces of whole elements.
[[nodiscard]] Pieces equal_pieces(double size, std::size_t ranks);

/// The collectives of one group.
class GroupTraffic {
 public:
  explicit GroupTraffic(const Network& network) : network_(network) {}

  /// An all-to-all in which each piece, of so many bytes, comes from all; or
  /// an all-reduce's gather, in which each goes straight to all others.
  void all_to_all(std::span<const double> bytes);
  /// all_gather(): in steps where many ranks gather few bytes.
  void all_gather(std::span<const double> bytes);
  /// The way up of values, in parts that fit the communicator's memory.
  void reduce(std::span<const double> elements, double element_bytes);

  [[nodiscard]] const Traffic& sum() const noexcept { return sum_; }

 private:
  void add_straight(double bytes, double messages, double rounds);

  Network network_;
  Traffic sum_;
};

/// The groups of an exchange. A hierarchical exchange has a group inside each
/// host and one for each local rank. A flat one has a single group. Pieces are
/// those of all ranks, in the order of places.
class HostTraffic {
 public:
  HostTraffic(bool by_host, const Network& network);

  [[nodiscard]] bool by_host() const noexcept { return inside_.ranks > 1; }
  [[nodiscard]] std::size_t ranks() const noexcept;
  /// Ranks of a host; flat: 1.
  [[nodiscard]] int local() const noexcept { return inside_.ranks; }
  /// The same groups, which have sent nothing.
  [[nodiscard]] HostTraffic anew() const;

  using Collective =
      std::function<void(GroupTraffic& group, std::span<const double> pieces)>;
  /// Runs `body` for one group inside a host, and does nothing in a flat
  /// exchange.
  template <class Body>
  void inside(Body&& body) {
    if (!by_host()) return;
    GroupTraffic group(inside_);
    body(group);
    sum_ = sum_ + group.sum();
  }
  /// Runs a collective with all pieces in the order of places.
  void within(std::span<const double> pieces, const Collective& collective);
  /// Flat: of all ranks.
  void across(std::span<const double> pieces, const Collective& collective);

  /// Add the traffic of Communicator's collectives of the same names, through
  /// the hosts.
  void reduce_scatter(std::span<const double> elements, double element_bytes);
  void all_gather(std::span<const double> bytes);
  /// Adds the traffic of an all-gather whose pieces lie in the order of ranks.
  void all_gather_by_rank(std::span<const double> bytes);
  /// All that came with this one, so many times.
  void add(const HostTraffic& more, double times);

  [[nodiscard]] const Traffic& sum() const noexcept { return sum_; }

 private:
  [[nodiscard]] bool goes_straight(std::span<const double> bytes) const;
  void straight(std::span<const double> bytes);

  Network whole_;
  Network inside_;
  Network outer_;
  Traffic sum_;
};

}  // namespace thinwire::plan
