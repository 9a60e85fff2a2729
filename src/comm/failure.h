// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/comm/transport.h"

/// Texts of Error(kCommFailure), which are the same for every backend. They
/// name ranks of the operation's group by their names in it.
namespace thinwire::comm::failure {

/// `peers` are the ranks that have not answered.
[[nodiscard]] std::string timed_out(const Operation& operation,
                                    std::span<const int> peers);
[[nodiscard]] std::string interrupted(const Operation& operation,
                                      std::span<const int> peers,
                                      std::string_view reason);
[[nodiscard]] std::string gave_up(int peer, std::string_view reason);
[[nodiscard]] std::string gave_up(const Operation& operation, int peer,
                                  std::string_view reason);
/// Returns whether an error with this message only passes on another rank's
/// failure.
[[nodiscard]] bool tells_of_a_peer(std::string_view message) noexcept;
[[nodiscard]] std::string left(const Operation& operation, int peer);
/// Returns the ranks that a text of timed_out() names, or none for any other
/// text.
[[nodiscard]] std::vector<int> waited_for(std::string_view text);
/// Returns whether `text` reports that ranks do not make the same calls,
/// because a rank is in another call, has left, or does not arrive.
[[nodiscard]] bool is_out_of_step(std::string_view text) noexcept;
[[nodiscard]] std::string this_rank_gave_up(const Operation& operation,
                                            std::string_view reason);
[[nodiscard]] std::string other_call(const Operation& operation, int peer,
                                     std::string_view its_name,
                                     std::uint64_t its_sequence);
[[nodiscard]] std::string wrong_size(const Operation& operation, int peer,
                                     std::size_t sent_bytes,
                                     std::size_t expected_bytes);

}  // namespace thinwire::comm::failure
