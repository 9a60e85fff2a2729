// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "comm/routes.h"
#include "thinwire/plan/planner.h"

namespace thinwire::plan {

/// Adds up the traffic of collectives and pipelines as a mean over ranks.
class MeanTraffic {
 public:
  /// Unless `by_host`, all ranks send directly to each other.
  MeanTraffic(bool by_host, const Network& network);

  [[nodiscard]] bool by_host() const noexcept { return by_host_; }
  [[nodiscard]] std::size_t ranks() const noexcept {
    return rank_->rank_at_place.size();
  }
  /// Returns the number of ranks per host, or 1 if all send directly.
  [[nodiscard]] std::size_t local() const noexcept {
    return ranks() / rank_->workers;
  }
  /// Returns an object for the same ranks without any traffic.
  [[nodiscard]] MeanTraffic anew() const;
  /// Returns one range of `size` elements per rank, all nearly equal.
  [[nodiscard]] std::vector<Range> equal_pieces(std::size_t size) const {
    return comm::equal_ranges(size, static_cast<int>(ranks()));
  }
  /// Reorders the ranges of places by rank.
  [[nodiscard]] std::vector<Range> by_rank(
      std::span<const Range> places) const {
    return comm::by_rank(places, rank_->rank_at_place);
  }

  using CostOfRank = std::function<comm::Cost(const comm::RankRoutes& rank)>;
  /// Adds the mean of cost(), in which rank r has pieces[r]. It evaluates one
  /// rank for each group of ranks that are alike. For gathers so small that
  /// even ranks with equal pieces differ, it evaluates all ranks.
  void add(std::span<const Range> pieces, const CostOfRank& cost,
           double gathered_bytes = std::numeric_limits<double>::infinity());
  /// Adds the mean of a cost if all ranks have equal pieces.
  void add_equal(const CostOfRank& cost) {
    add(std::vector<Range>(ranks()), cost);
  }
  /// Adds the traffic of `more`, `times` times.
  void add(const MeanTraffic& more, double times);

  [[nodiscard]] const Traffic& sum() const noexcept { return sum_; }

 private:
  bool by_host_;
  std::size_t on_host_;  // ranks per host, even if all send directly
  std::shared_ptr<comm::RankRoutes> rank_;  // the rank that is evaluated
  Traffic sum_;
};

}  // namespace thinwire::plan
