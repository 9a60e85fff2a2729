// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

/// Messages that are worth a line but are no errors. The library never prints:
/// it passes such lines to the sink that the program has set. Only comm::run(),
/// which stands for a program's main(), reports that program's failure by
/// itself.
namespace thinwire {

/// Importance of a line. Failures are not logged, they are thrown as Error.
enum class LogLevel {
  kDebug,    ///< Details that help to find out what happened.
  kInfo,     ///< Good to know, for example a key of a file that has no effect.
  kWarning,  ///< Most likely a mistake of the user.
};

/// Returns "debug", "info" or "warning".
[[nodiscard]] std::string_view to_string(LogLevel level) noexcept;

/// Receives one line, without its end; `text` is valid during the call only.
/// Any thread may call it, but only one at a time. It must not wait for other
/// threads or ranks. An exception that it throws and a line that it logs itself
/// are lost.
using LogSink = std::function<void(LogLevel level, std::string_view text)>;

/// Sends the later lines of this process to `sink`, or nowhere if it is empty,
/// as at the start. After the return the previous sink is no longer in use.
/// Throws Error(kFailedPrecondition) inside a sink.
void set_log_sink(LogSink sink);

/// Passes a line to the sink. Without a sink it does nothing, at no cost.
void log(LogLevel level, std::string_view text) noexcept;

}  // namespace thinwire
