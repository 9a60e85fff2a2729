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

/// The way of one part through the ranks, which serves all parts with the same
/// units. Its stages begin with send(), which is 0, and end with complete().
class PartWay {
 public:
  explicit PartWay(std::span<const std::size_t> of)
      : units(of.begin(), of.end()) {}
  virtual ~PartWay() = default;
  PartWay(const PartWay&) = delete;
  PartWay& operator=(const PartWay&) = delete;

  /// Encodes `x`, which is the part's values or, in a hierarchical exchange,
  /// their mean inside the host. Collective, queued.
  virtual void send(ConstView x, const UnitPart& part) = 0;
  /// Takes the next stage but the last. Collective, queued.
  virtual void advance(std::size_t stage) = 0;
  /// Returns whether the average, which it writes, is finite. Collective, done
  /// on return.
  virtual bool complete() = 0;
  /// The part counts: residuals become those of its run. Local.
  virtual void accept() = 0;
  virtual void drop() noexcept = 0;
  [[nodiscard]] virtual double wait_seconds() const = 0;

  const std::vector<std::size_t> units;

 private:
  friend class PartsInFlight;
  View values_{};  // while it is in flight
  std::size_t stage_ = 0;
};

/// Parts on their way, each one stage behind the next older one.
class PartsInFlight : public UnitMean {
 public:
  /// Route and residuals must outlive it.
  PartsInFlight(const Route& route, const UnitResiduals& residuals,
                std::size_t last_stage, Accepts accepts);

  std::vector<bool> begin(const UnitPart& part) override;
  std::vector<bool> finish() override;
  void end_step(bool counts) override;
  void drop() noexcept override;
  [[nodiscard]] double wait_seconds() const override;
  /// Throws Error(kFailedPrecondition) naming the call while a part is in
  /// flight.
  void require_idle(std::string_view call) const;
  /// Throws Error(kInvalidArgument) unless begin() takes this part.
  void check(const UnitPart& part) const;

 protected:
  /// Makes the way of parts with these units.
  [[nodiscard]] virtual std::unique_ptr<PartWay> make_way(
      std::span<const std::size_t> units) = 0;
  [[nodiscard]] const Route& route() const noexcept { return route_; }
  /// Returns the number of parts in flight at most.
  [[nodiscard]] std::size_t most() const noexcept { return last_stage_ + 1; }
  [[nodiscard]] bool accepts_steps() const noexcept {
    return accepts_ == Accepts::kSteps;
  }
  /// Returns which of most() parts is now sent, counted in turns.
  [[nodiscard]] std::size_t turn() const noexcept { return begun_ % most(); }

 private:
  [[nodiscard]] PartWay& way_for(std::span<const std::size_t> units);
  // All parts take one stage more, the youngest first. Returns what completed.
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
  std::deque<PartWay*> in_flight_;  // the oldest first
  std::deque<PartWay*> completed_;  // of a step, if steps are accepted
  std::size_t begun_ = 0;           // since nothing was in flight
  Buffer host_mean_;                // of a part, unless flat
  double waited_ = 0;               // by ways that are gone, and inside hosts
};

}  // namespace thinwire::exchange
