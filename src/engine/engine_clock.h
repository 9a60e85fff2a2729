// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "thinwire/engine/engine.h"

namespace thinwire::engine {

/// Replaces the clock by which an engine judges whether compressed steps are
/// faster. The engine reads it twice in each step at a boundary: before the
/// optimizer's step and after it. For tests.
class EngineClock {
 public:
  using Now = std::function<std::chrono::steady_clock::time_point()>;
  /// Sets the clock. Call it before the first step.
  static void set(Engine& engine, Now now);
};

}  // namespace thinwire::engine
