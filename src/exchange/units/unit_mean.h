// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "thinwire/exchange/unit_part.h"

namespace thinwire::exchange {

/// The end of a part, or of a whole step, whose average is finite: residuals
/// and factors change.
enum class Accepts { kParts, kSteps };

/// An average of gradients in parts, which LowBitMean and LowRankMean show to
/// users. Units are parameters.
class UnitMean {
 public:
  UnitMean() = default;
  virtual ~UnitMean() = default;
  UnitMean(const UnitMean&) = delete;
  UnitMean& operator=(const UnitMean&) = delete;

  /// Do what LowBitMean::begin() and finish() do.
  virtual std::vector<bool> begin(const UnitPart& part) = 0;
  virtual std::vector<bool> finish() = 0;
  /// Ends a step of Accepts::kSteps, all of whose parts have completed. Unless
  /// it `counts`, nothing has changed. Local.
  virtual void end_step(bool counts) = 0;
  /// Ends all parts in flight, and a step, which leave no trace. Blocks until
  /// nothing is in flight. Local.
  virtual void drop() noexcept = 0;
  [[nodiscard]] virtual double wait_seconds() const = 0;
};

}  // namespace thinwire::exchange
