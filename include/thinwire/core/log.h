// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

/// What is worth a line, but no error: the library never prints, it hands such
/// lines to whoever has asked for them. (comm::run(), which stands for a
/// program's main(), reports that program's failure by itself.)
namespace thinwire {

/// Failures are not among them: those are thrown as Error.
enum class LogLevel {
  kDebug,    ///< Helps to find out what went on.
  kInfo,     ///< Good to know: a key of a file that has no effect.
  kWarning,  ///< Most likely not what was meant.
};

/// "debug", "info", "warning".
[[nodiscard]] std::string_view to_string(LogLevel level) noexcept;

/// Takes one line, without its end; `text` is valid during the call only.
/// Called by any thread, but by one at a time. It must not wait for other
/// threads or ranks; what it throws is lost, and so is what it logs itself.
using LogSink = std::function<void(LogLevel level, std::string_view text)>;

/// From now on lines of this process go to `sink`; an empty one, as at the
/// start: nowhere. When it returns, the sink before is no longer in use. Throws
/// Error(kFailedPrecondition) inside a sink.
void set_log_sink(LogSink sink);

/// Hands a line to the sink; without one it does nothing, and costs nothing.
void log(LogLevel level, std::string_view text) noexcept;

}  // namespace thinwire
