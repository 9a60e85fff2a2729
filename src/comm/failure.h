// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/comm/transport.h"

/// The texts of Error(kCommFailure), the same for every backend. Ranks of the
/// operation's group are called by their names in it.
namespace thinwire::comm::failure {

/// `peers`: the ranks that were still waited for.
[[nodiscard]] std::string timed_out(const Operation& operation,
                                    std::span<const int> peers);
[[nodiscard]] std::string interrupted(const Operation& operation,
                                      std::span<const int> peers,
                                      std::string_view reason);
[[nodiscard]] std::string gave_up(int peer, std::string_view reason);
[[nodiscard]] std::string gave_up(const Operation& operation, int peer,
                                  std::string_view reason);
/// `message` is of an error that only passes another rank's failure on.
[[nodiscard]] bool tells_of_a_peer(std::string_view message) noexcept;
[[nodiscard]] std::string left(const Operation& operation, int peer);
/// The ranks that a text of timed_out() names; none in any other text.
[[nodiscard]] std::vector<int> waited_for(std::string_view text);
/// `text` says that a rank is elsewhere, has gone, or does not come: it makes
/// other calls than this one, or fewer.
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
