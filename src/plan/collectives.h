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

/// Adds up the traffic of collectives and pipelines, as a mean over ranks.
class MeanTraffic {
 public:
  /// Unless `by_host`, all of them go directly.
  MeanTraffic(bool by_host, const Network& network);

  [[nodiscard]] bool by_host() const noexcept { return by_host_; }
  [[nodiscard]] std::size_t ranks() const noexcept {
    return rank_->rank_at_place.size();
  }
  /// Returns the ranks of a host, or 1 if all go directly.
  [[nodiscard]] std::size_t local() const noexcept {
    return ranks() / rank_->workers;
  }
  /// Returns the same ranks, which have sent nothing.
  [[nodiscard]] MeanTraffic anew() const;
  /// Returns one range of `size` elements for each rank, nearly equal.
  [[nodiscard]] std::vector<Range> equal_pieces(std::size_t size) const {
    return comm::equal_ranges(size, static_cast<int>(ranks()));
  }
  /// Returns the ranges of places in the order of ranks.
  [[nodiscard]] std::vector<Range> by_rank(
      std::span<const Range> places) const {
    return comm::by_rank(places, rank_->rank_at_place);
  }

  using CostOfRank = std::function<comm::Cost(const comm::RankRoutes& rank)>;
  /// Adds the mean of cost(), in which rank r has pieces[r]. It asks for one of
  /// the ranks that are alike. If they gather so few bytes that not even ranks
  /// with equal pieces are alike, it asks for all.
  void add(std::span<const Range> pieces, const CostOfRank& cost,
           double gathered_bytes = std::numeric_limits<double>::infinity());
  /// Adds the mean of a cost in which all ranks have equal pieces.
  void add_equal(const CostOfRank& cost) {
    add(std::vector<Range>(ranks()), cost);
  }
  /// Adds what `more` has, so many times.
  void add(const MeanTraffic& more, double times);

  [[nodiscard]] const Traffic& sum() const noexcept { return sum_; }

 private:
  bool by_host_;
  std::size_t on_host_;  // ranks of one, even if all go directly
  std::shared_ptr<comm::RankRoutes> rank_;  // the one that is asked
  Traffic sum_;
};

}  // namespace thinwire::plan
