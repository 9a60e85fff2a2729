// SPDX-License-Identifier: Apache-2.0
#include "comm/failure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace thinwire::comm::failure {
namespace {

// "rank 2", "ranks 1, 3".
std::string name_ranks(std::span<const int> peers) {
  return fmt::format("{} {}", peers.size() == 1 ? "rank" : "ranks",
                     fmt::join(peers, ", "));
}

}  // namespace

std::string timed_out(const Operation& operation, std::span<const int> peers) {
  return fmt::format("{}: timed out waiting for {}", operation.name,
                     name_ranks(peers));
}

std::string interrupted(const Operation& operation, std::span<const int> peers,
                        std::string_view reason) {
  if (peers.empty())
    return fmt::format("{}: interrupted ({})", operation.name, reason);
  return fmt::format("{}: interrupted ({}) while waiting for {}",
                     operation.name, reason, name_ranks(peers));
}

std::string gave_up(const Operation& operation, int peer,
                    std::string_view reason) {
  return fmt::format("{}: rank {} gave up: {}", operation.name, peer, reason);
}

std::string left(const Operation& operation, int peer) {
  return fmt::format("{}: rank {} has left: its communicator was destroyed",
                     operation.name, peer);
}

std::string this_rank_gave_up(const Operation& operation,
                              std::string_view reason) {
  return fmt::format("{}: this rank gave up: {}", operation.name, reason);
}

std::string wrong_size(const Operation& operation, int peer,
                       std::size_t sent_bytes, std::size_t expected_bytes) {
  return fmt::format("{}: rank {} sent {} bytes where {} were expected",
                     operation.name, peer, sent_bytes, expected_bytes);
}

}  // namespace thinwire::comm::failure
