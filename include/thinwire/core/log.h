// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

/// Log lines. The library passes them to the sink that the program has set, and
/// prints nothing itself. The only exception is comm::run(), which reports the
/// failure of the program.
namespace thinwire {

/// Severity of a line. Failures are not logged but thrown as Error.
enum class LogLevel {
  kDebug,    ///< Details that help to find out what happened.
  kInfo,     ///< Useful facts, for example a key of a file that has no effect.
  kWarning,  ///< A probable mistake of the user.
};

/// Returns "debug", "info" or "warning".
[[nodiscard]] std::string_view to_string(LogLevel level) noexcept;

/// Receives one line without the newline. `text` is valid only during the call.
/// Any thread may call the sink, but never two at once. It must not wait for
/// other threads or ranks. Its exceptions, and lines that it logs itself, are
/// dropped.
using LogSink = std::function<void(LogLevel level, std::string_view text)>;

/// Sends all later lines of this process to `sink`. If `sink` is empty, which
/// is the default, lines are dropped. When this returns, the previous sink is
/// no longer in use. Throws Error(kFailedPrecondition) if called by a sink.
void set_log_sink(LogSink sink);

/// Passes a line to the sink. Without a sink, returns at once.
void log(LogLevel level, std::string_view text) noexcept;

}  // namespace thinwire
