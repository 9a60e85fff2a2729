// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "thinwire/engine/engine.h"

namespace thinwire::engine {

/// What an engine takes for the time where it judges whether compressed steps
/// pay. It asks twice in each step at a boundary, as the optimizer's step
/// begins and when it has ended; tests answer.
class EngineClock {
 public:
  using Now = std::function<std::chrono::steady_clock::time_point()>;
  /// Before the first step.
  static void set(Engine& engine, Now now);
};

}  // namespace thinwire::engine
