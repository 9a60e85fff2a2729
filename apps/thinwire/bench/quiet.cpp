// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/bench/quiet.h"

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

namespace thinwire::apps::bench {

namespace {

constexpr auto kWindow = std::chrono::milliseconds(60);
constexpr auto kPatience = std::chrono::seconds(1);
constexpr double kMostCores = 0.08;

// Returns the seconds that all cores together have spent at work.
std::optional<double> busy_seconds() {
  std::ifstream file("/proc/stat");
  std::string label;
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0;
  file >> label >> user >> nice >> system >> idle >> wait >> irq >> soft;
  if (!file || label != "cpu") return std::nullopt;
  return (user + nice + system + irq + soft) /
         static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

bool wait_until_quiet() {
  using Clock = std::chrono::steady_clock;
  const auto give_up = Clock::now() + kPatience;
  do {
    const auto begin = Clock::now();
    const auto before = busy_seconds();
    std::this_thread::sleep_for(kWindow);
    const auto after = busy_seconds();
    if (!before || !after) return false;
    const std::chrono::duration<double> passed = Clock::now() - begin;
    if ((*after - *before) / passed.count() < kMostCores) return true;
  } while (Clock::now() < give_up);
  return false;
}

}  // namespace thinwire::apps::bench
