// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

/// Messages that are worth a line but are no errors. The library passes them to
/// the sink that the program has set. It prints nothing itself, except that
/// comm::run() reports the failure of the program.
namespace thinwire {

/// Importance of a line. Failures are not logged, they are thrown as Error.
enum class LogLevel {
  kDebug,    ///< Details that help to find out what happened.
  kInfo,     ///< Good to know, for example a key of a file that has no effect.
  kWarning,  ///< Most likely a mistake of the user.
};

/// Returns "debug", "info" or "warning".
[[nodiscard]] std::string_view to_string(LogLevel level) noexcept;

/// Receives one line, without the newline; `text` is valid during the call
/// only. Any thread may call it, but only one at a time. It must not wait for
/// other threads or ranks. An exception that it throws and a line that it logs
/// itself are lost.
using LogSink = std::function<void(LogLevel level, std::string_view text)>;

/// Sends all later lines of this process to `sink`. If it is empty, as it is by
/// default, lines are dropped. After the return the previous sink is no longer
/// in use. Throws Error(kFailedPrecondition) if a sink calls it.
void set_log_sink(LogSink sink);

/// Passes a line to the sink. Without a sink it does nothing, at no cost.
void log(LogLevel level, std::string_view text) noexcept;

}  // namespace thinwire
