// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace thinwire::train_gpt {

/// Sets what signals do from now on, in this process.
///
/// SIGINT and SIGTERM end the current exchange or step with an Error instead of
/// killing the process; mpirun sends SIGTERM to all ranks when one of them has
/// died. A second one kills.
///
/// Those in `saving` ask for a checkpoint first, and do that only when they
/// come again, or 25 seconds after SIGTERM and SIGINT: their sender kills soon.
/// A third one kills. SIGINT stays ignored if it was.
void handle_signals(std::span<const int> saving);

/// Returns the signal that has interrupted, or 0.
[[nodiscard]] int stop_signal() noexcept;
/// Returns the first that asked for a checkpoint, or 0.
[[nodiscard]] int save_signal() noexcept;
/// Ends the 25 seconds: the checkpoint is complete.
void end_grace() noexcept;
/// Returns "SIGTERM" and the like; "" of 0.
[[nodiscard]] std::string_view signal_name(int signal) noexcept;

}  // namespace thinwire::train_gpt
