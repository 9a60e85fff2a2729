// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace thinwire::comm::mpi {

/// Pauses a polling loop between two polls. At first it yields, which suits
/// short messages. Later it sleeps, which frees the cores while a long message
/// is in flight.
class Backoff {
 public:
  void pause() {
    if (!sleeping()) {
      ++yields_;
      std::this_thread::yield();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(sleep_ * 5 / 4, kLongestSleep);
  }

  [[nodiscard]] bool sleeping() const noexcept { return yields_ >= kYields; }

 private:
  static constexpr int kYields = 200;
  static constexpr std::chrono::nanoseconds kLongestSleep =
      std::chrono::microseconds(200);

  int yields_ = 0;
  std::chrono::nanoseconds sleep_ = std::chrono::microseconds(20);
};

}  // namespace thinwire::comm::mpi
