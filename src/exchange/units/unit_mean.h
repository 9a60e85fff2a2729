// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "thinwire/exchange/unit_part.h"

namespace thinwire::exchange {

/// Unit of acceptance: residuals and factors change after every part, or after
/// every step, whose averages are finite.
enum class Accepts { kParts, kSteps };

/// An average of gradients in parts, on which LowBitMean and LowRankMean are
/// built. Units are parameters.
class UnitMean {
 public:
  UnitMean() = default;
  virtual ~UnitMean() = default;
  UnitMean(const UnitMean&) = delete;
  UnitMean& operator=(const UnitMean&) = delete;

  /// Perform LowBitMean::begin() and finish().
  virtual std::vector<bool> begin(const UnitPart& part) = 0;
  virtual std::vector<bool> finish() = 0;
  /// Ends a step with Accepts::kSteps after all its parts have completed. Keeps
  /// its changes if it `counts`, and discards them otherwise. Local.
  virtual void end_step(bool counts) = 0;
  /// Discards all parts in flight and the present step. Blocks until nothing is
  /// in flight. Local.
  virtual void drop() noexcept = 0;
  [[nodiscard]] virtual double wait_seconds() const = 0;
};

}  // namespace thinwire::exchange
