// SPDX-License-Identifier: Apache-2.0
#include "engine/signal_flag.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <utility>

#include "thinwire/core/error.h"

namespace thinwire::engine {

namespace {

struct Watched {
  int users = 0;               // under the mutex
  struct sigaction before {};  // set before the handler is
  std::atomic<bool> raised{false};
};
static_assert(std::atomic<bool>::is_always_lock_free);

constexpr std::size_t kMostSignals = 65;
std::mutex mutex;
std::array<Watched, kMostSignals> all;

Watched& watched(int signal) { return all[static_cast<std::size_t>(signal)]; }

extern "C" void set_flag(int signal) {
  Watched& its = watched(signal);
  if (!its.raised.exchange(true)) return;
  const int saved = errno;
  sigaction(signal, &its.before, nullptr);
  raise(signal);  // arrives when this handler has returned
  errno = saved;
}

void begin(int signal) {
  Watched& its = watched(signal);
  if (its.users > 0) {
    ++its.users;
    return;
  }
  its.raised = false;
  struct sigaction action {};
  action.sa_handler = set_flag;
  action.sa_flags = SA_RESTART;
  if (sigaction(signal, nullptr, &its.before) != 0 ||
      sigaction(signal, &action, nullptr) != 0)
    throw Error(ErrorCode::kUnavailable,
                fmt::format("signals: {} cannot be caught: {}", signal,
                            std::strerror(errno)));
  its.users = 1;
}

void end(int signal) noexcept {
  Watched& its = watched(signal);
  if (--its.users > 0) return;
  struct sigaction now {};
  // Not where somebody else has taken it since.
  if (sigaction(signal, nullptr, &now) == 0 && now.sa_handler == set_flag)
    sigaction(signal, &its.before, nullptr);
}

}  // namespace

SignalFlag::SignalFlag(std::vector<int> signals)
    : signals_(std::move(signals)) {
  const std::lock_guard lock(mutex);
  for (auto signal = signals_.begin(); signal != signals_.end(); ++signal) {
    try {
      begin(*signal);
    } catch (...) {
      std::for_each(signals_.begin(), signal, end);
      throw;
    }
  }
}

SignalFlag::~SignalFlag() {
  const std::lock_guard lock(mutex);
  std::for_each(signals_.begin(), signals_.end(), end);
}

bool SignalFlag::is_raised() const noexcept {
  return std::any_of(signals_.begin(), signals_.end(),
                     [](int signal) { return watched(signal).raised.load(); });
}

}  // namespace thinwire::engine
