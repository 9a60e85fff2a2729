// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "exchange/low_bit_exchange.h"
#include "thinwire/exchange/low_bit_mean.h"

namespace thinwire::exchange {

/// The units of LowBitMean, and their parts on the way: cuts units into blocks,
/// has the residuals of all of them, and a pipeline for each part.
class LowBitUnits {
 public:
  /// Takes what LowBitMean takes.
  LowBitUnits(const Route& route, ThreadPool& pool,
              std::span<const std::size_t> sizes,
              const LowBitMeanOptions& options);

  /// Does what LowBitMean::begin() and finish() do.
  std::vector<bool> begin(const LowBitMean::Part& part);
  std::vector<bool> finish();
  void require_idle(std::string_view call) const;

  [[nodiscard]] std::size_t bytes_per_pass() const;
  [[nodiscard]] double wait_seconds() const;

  [[nodiscard]] ConstView worker_error() const { return worker_.view(); }
  [[nodiscard]] Buffer server_error() const;
  void load_errors(ConstView worker, ConstView server);
  /// Returns the elements that this rank encodes, and those that it serves, as
  /// sorted ranges.
  [[nodiscard]] std::vector<Range> encoded() const;
  [[nodiscard]] std::vector<Range> served() const;

 private:
  // A block of the flat array.
  struct Cut {
    Range range;
    std::size_t place;   // its server
    std::size_t served;  // its first element in server_, if served here

    [[nodiscard]] Range in_server() const { return {served, range.size}; }
  };
  struct Unit {
    std::size_t size;
    Range cuts;
  };
  // The way of one part through the ranks.
  struct Plan {
    std::vector<std::size_t> units;
    BlockLayout layout;  // values: of the part; residual: of the flat array
    std::unique_ptr<LowBitExchange> exchange;
    View values{};  // while it is in flight
  };
  // Residuals of a part in flight.
  struct Fresh {
    Buffer worker;
    Buffer server;
  };

  void check(const LowBitMean::Part& part) const;
  [[nodiscard]] Plan& plan_for(std::span<const std::size_t> units);
  [[nodiscard]] std::unique_ptr<Plan> make_plan(
      std::span<const std::size_t> units);
  void send(Plan& plan, const LowBitMean::Part& part);
  bool complete_first();
  template <class Body>
  std::vector<bool> or_drop(Body&& body);
  [[nodiscard]] View mean_of_host(ConstView values);
  [[nodiscard]] bool encodes(const Cut& cut) const {
    return places_.first <= cut.place && cut.place < places_.end();
  }
  [[nodiscard]] bool serves(const Cut& cut) const {
    return cut.place == places_.own;
  }

  const Route route_;
  ThreadPool& pool_;
  const LowBitMeanOptions options_;
  const ValueCodec& codec_;
  const Places places_;
  std::vector<Cut> cuts_;
  std::vector<Unit> units_;
  Buffer worker_;
  Buffer server_;
  Buffer host_mean_;   // of a part, unless flat
  double waited_ = 0;  // by plans that are gone, and inside hosts
  std::vector<std::unique_ptr<Plan>> plans_;
  // The oldest first. One is being sent back, the next one averaged, and the
  // last one encoded.
  std::deque<Plan*> in_flight_;
  std::array<Fresh, 3> fresh_;
  std::size_t begun_ = 0;  // since nothing was in flight
};

}  // namespace thinwire::exchange
