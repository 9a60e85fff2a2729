// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "exchange/pipeline/pipeline.h"
#include "exchange/units/unit_mean.h"
#include "exchange/units/unit_residuals.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/view.h"

namespace thinwire::exchange {

/// Path of one part through the ranks, for all parts with the same units. Its
/// stages begin with send(), which is stage 0, and end with complete().
class PartWay {
 public:
  explicit PartWay(std::span<const std::size_t> of)
      : units(of.begin(), of.end()) {}
  virtual ~PartWay() = default;
  PartWay(const PartWay&) = delete;
  PartWay& operator=(const PartWay&) = delete;

  /// Encodes and sends `x`, which holds the part's values or, in a hierarchical
  /// exchange, their mean inside the host. Collective, queued.
  virtual void send(ConstView x, const UnitPart& part) = 0;
  /// Runs the next stage, except the last. Collective, queued.
  virtual void advance(std::size_t stage) = 0;
  /// Writes the average and returns whether it is finite. Collective and
  /// blocking.
  virtual bool complete() = 0;
  /// Keeps the residuals of the run. Local.
  virtual void accept() = 0;
  virtual void drop() noexcept = 0;
  [[nodiscard]] virtual double wait_seconds() const = 0;

  const std::vector<std::size_t> units;

 private:
  friend class PartsInFlight;
  View values_{};  // while it is in flight
  std::size_t stage_ = 0;
};

/// Parts in flight, each one stage behind the next older part.
class PartsInFlight : public UnitMean {
 public:
  /// `route` and `residuals` must outlive this object.
  PartsInFlight(const Route& route, const UnitResiduals& residuals,
                std::size_t last_stage, Accepts accepts);

  std::vector<bool> begin(const UnitPart& part) override;
  std::vector<bool> finish() override;
  void end_step(bool counts) override;
  void drop() noexcept override;
  [[nodiscard]] double wait_seconds() const override;
  /// Throws Error(kFailedPrecondition) with the name of the call if a part is
  /// in flight.
  void require_idle(std::string_view call) const;
  /// Throws Error(kInvalidArgument) unless begin() accepts this part.
  void check(const UnitPart& part) const;

 protected:
  /// Creates the path of parts with these units.
  [[nodiscard]] virtual std::unique_ptr<PartWay> make_way(
      std::span<const std::size_t> units) = 0;
  [[nodiscard]] const Route& route() const noexcept { return route_; }
  /// Returns the largest number of parts in flight.
  [[nodiscard]] std::size_t most() const noexcept { return last_stage_ + 1; }
  [[nodiscard]] bool accepts_steps() const noexcept {
    return accepts_ == Accepts::kSteps;
  }
  /// Returns the slot, below most(), of the part that is now sent.
  [[nodiscard]] std::size_t turn() const noexcept { return begun_ % most(); }

 private:
  [[nodiscard]] PartWay& way_for(std::span<const std::size_t> units);
  // Advances all parts by one stage, the youngest first. Returns for each
  // completed part whether its average is finite.
  [[nodiscard]] std::vector<bool> advance_all();
  bool complete_first();
  template <class Body>
  std::vector<bool> or_drop(Body&& body);
  [[nodiscard]] View mean_of_host(ConstView values);

  const Route route_;
  const std::span<const UnitResiduals::Unit> all_;
  const std::size_t last_stage_;
  const Accepts accepts_;
  std::vector<std::unique_ptr<PartWay>> ways_;
  std::deque<PartWay*> in_flight_;  // oldest first
  std::deque<PartWay*> completed_;  // parts of a step, with Accepts::kSteps
  std::size_t begun_ = 0;           // parts begun since nothing was in flight
  Buffer host_mean_;                // of one part; empty if flat
  double waited_ = 0;               // by deleted paths, and inside hosts
};

}  // namespace thinwire::exchange
