// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace thinwire::train_gpt {

/// What signals do from now on, in this process:
///
/// SIGINT and SIGTERM end the exchange or step under way with an Error instead
/// of killing the process; mpirun sends SIGTERM to all ranks when one of them
/// has died. A second one kills.
///
/// Those in `saving` ask for a checkpoint first, and do that only when they
/// come again, or 25 seconds after SIGTERM and SIGINT: who sends those kills
/// soon. A third one kills. SIGINT stays ignored where it was.
void handle_signals(std::span<const int> saving);

/// The signal that has interrupted, or 0.
[[nodiscard]] int stop_signal() noexcept;
/// The first that asked for a checkpoint, or 0.
[[nodiscard]] int save_signal() noexcept;
/// The checkpoint is complete: nothing more is in a hurry.
void end_grace() noexcept;
/// "SIGTERM"; "" of 0.
[[nodiscard]] std::string_view signal_name(int signal) noexcept;

}  // namespace thinwire::train_gpt
