// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace thinwire::train_gpt {

/// Sets the actions of signals in this process.
///
/// SIGINT and SIGTERM end the current exchange or step with an Error instead of
/// killing the process. (mpirun sends SIGTERM to all ranks when one of them has
/// died.) A second signal kills the process.
///
/// A signal in `saving` requests a checkpoint first. If it arrives again, it
/// ends the exchange or step. SIGTERM and SIGINT do the same after 25 seconds,
/// because their sender will soon kill the process. A third signal kills.
/// SIGINT stays ignored if it was.
void handle_signals(std::span<const int> saving);

/// Returns the signal that has interrupted the run, or 0.
[[nodiscard]] int stop_signal() noexcept;
/// Returns the first signal that requested a checkpoint, or 0.
[[nodiscard]] int save_signal() noexcept;
/// Cancels the 25 seconds, because the checkpoint is complete.
void end_grace() noexcept;
/// Returns a name such as "SIGTERM", or "" for 0.
[[nodiscard]] std::string_view signal_name(int signal) noexcept;

}  // namespace thinwire::train_gpt
