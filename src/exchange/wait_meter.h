// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <span>

#include "thinwire/comm/communicator.h"

namespace thinwire::exchange {

/// Adds up the time that a step spends waiting for other ranks.
class WaitMeter {
 public:
  /// `seconds` must outlive this object.
  explicit WaitMeter(double& seconds) : seconds_(seconds) {}

  /// Adds the duration of `body`, which waits.
  template <class Body>
  void waiting(Body&& body) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    seconds_ += seconds_since(begin);
  }
  void wait_for(std::span<const comm::Work> works) {
    waiting([&] {
      for (const comm::Work& work : works) work.wait();
    });
  }
  /// Adds a time measured elsewhere.
  void add(double seconds) { seconds_ += seconds; }
  /// Runs `body(exchange)` and adds the time that `exchange` spends waiting in
  /// it.
  template <class Exchange, class Body>
  void adding_waits_of(Exchange& exchange, Body&& body) {
    const double before = exchange.wait_seconds();
    body(exchange);
    seconds_ += exchange.wait_seconds() - before;
  }

 protected:
  [[nodiscard]] static double seconds_since(
      std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         begin)
        .count();
  }

 private:
  double& seconds_;
};

}  // namespace thinwire::exchange
