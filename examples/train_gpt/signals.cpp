// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/signals.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>

#include "thinwire/comm/transport.h"
#include "thinwire/core/env.h"

namespace thinwire::train_gpt {
namespace {

constexpr unsigned kGraceSeconds = 25;

std::atomic<int> signal_that_stops{0};
std::atomic<int> signal_that_saves{0};
static_assert(std::atomic<int>::is_always_lock_free);
std::atomic<bool> is_launched{false};

struct Known {
  int signal;
  std::string_view name;
  const char* reason;  // why the run ends
};
constexpr Known kKnown[] = {
    {SIGINT, "SIGINT", "SIGINT was received"},
    {SIGTERM, "SIGTERM", "SIGTERM was received"},
    {SIGUSR1, "SIGUSR1", "SIGUSR1 was received again"},
    {SIGUSR2, "SIGUSR2", "SIGUSR2 was received again"},
    {SIGALRM, "", "a checkpoint took longer than 25 seconds after a signal"},
};

Known known(int signal) {
  for (const Known& one : kKnown)
    if (one.signal == signal) return one;
  return {0, "", ""};
}

const char* reason_of(int signal) {
  if (signal == SIGTERM && is_launched)
    return "SIGTERM was received: the launcher sends it when it is stopped "
           "itself, or when another rank has died";
  return known(signal).reason;
}

void set_handler(int signal, void (*handler)(int), int flags) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigaction(signal, &action, nullptr);
}

void stop(int signal, const char* reason) {
  signal_that_stops = signal;
  comm::interrupt(reason);
}

extern "C" void on_signal(int signal) { stop(signal, reason_of(signal)); }

extern "C" void on_alarm(int) { stop(signal_that_saves, reason_of(SIGALRM)); }

extern "C" void on_save_signal(int signal) {
  const int saved = errno;
  int none = 0;
  if (signal_that_saves.compare_exchange_strong(none, signal)) {
    if (signal == SIGTERM || signal == SIGINT) alarm(kGraceSeconds);
  } else {
    set_handler(signal, SIG_DFL, 0);
    stop(signal, reason_of(signal));
  }
  errno = saved;
}

}  // namespace

void handle_signals(std::span<const int> saving) {
  is_launched = env::launched_ranks() > 1;
  const auto saves = [saving](int signal) {
    return std::find(saving.begin(), saving.end(), signal) != saving.end();
  };
  const int reset = static_cast<int>(SA_RESETHAND);
  set_handler(SIGALRM, on_alarm, 0);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) {
    struct sigaction before = {};
    sigaction(signal, nullptr, &before);
    if (signal == SIGINT && before.sa_handler == SIG_IGN) continue;
    if (saves(signal))
      set_handler(signal, on_save_signal, SA_RESTART);
    else if (signal == SIGINT || signal == SIGTERM)
      set_handler(signal, on_signal, reset);
  }
}

int stop_signal() noexcept { return signal_that_stops; }

int save_signal() noexcept { return signal_that_saves; }

void end_grace() noexcept { alarm(0); }

std::string_view signal_name(int signal) noexcept { return known(signal).name; }

}  // namespace thinwire::train_gpt
