// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/log.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "core/require.h"

namespace thinwire {

namespace {

struct Log {
  std::mutex mutex;
  LogSink sink;                       // called and replaced under the mutex
  std::atomic<bool> has_sink{false};  // can be read without the mutex
};

// Never destroyed, because threads may outlive main().
Log& the_log() {
  static Log& log = *new Log;
  return log;
}

thread_local bool is_in_sink = false;

}  // namespace

std::string_view to_string(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
  }
  return "unknown";
}

void set_log_sink(LogSink sink) {
  if (is_in_sink) refuse("set_log_sink: inside a sink");
  Log& log = the_log();
  const std::lock_guard lock(log.mutex);
  // The old sink is destroyed with the argument, after the mutex is released.
  std::swap(log.sink, sink);
  log.has_sink = static_cast<bool>(log.sink);
}

void log(LogLevel level, std::string_view text) noexcept {
  Log& log = the_log();
  if (is_in_sink || !log.has_sink) return;
  try {
    const std::lock_guard lock(log.mutex);
    if (!log.sink) return;
    is_in_sink = true;
    log.sink(level, text);
  } catch (...) {  // nobody is left to report to
  }
  is_in_sink = false;
}

}  // namespace thinwire
