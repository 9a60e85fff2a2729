// SPDX-License-Identifier: Apache-2.0
#include "comm/failure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>
#include <string>
#include <vector>

namespace thinwire::comm::failure {
namespace {

constexpr std::string_view kGaveUp = " gave up: ";

int name_of(const Operation& operation, int peer) {
  const auto at = static_cast<std::size_t>(peer);
  return operation.names.empty() ? peer : operation.names[at];
}

// Returns a text such as "rank 2" or "ranks 1, 3".
std::string name_ranks(const Operation& operation, std::span<const int> peers) {
  std::vector<int> names;
  for (const int peer : peers) names.push_back(name_of(operation, peer));
  return fmt::format("{} {}", names.size() == 1 ? "rank" : "ranks",
                     fmt::join(names, ", "));
}

constexpr std::string_view kTimedOut = "timed out waiting for ";
constexpr std::string_view kLeft = "has left: its communicator was destroyed";
constexpr std::string_view kElsewhere = ", this rank in exchange ";
constexpr std::string_view kWrongSize = " bytes where ";

}  // namespace

bool is_out_of_step(std::string_view text) noexcept {
  for (const std::string_view part : {kTimedOut, kLeft, kElsewhere, kWrongSize})
    if (text.find(part) != std::string_view::npos) return true;
  return false;
}

std::vector<int> waited_for(std::string_view text) {
  const std::size_t at = text.find(kTimedOut);
  if (at == std::string_view::npos) return {};
  std::istringstream words(std::string(text.substr(at + kTimedOut.size())));
  std::string word;
  words >> word;  // "rank" or "ranks", before the numbers
  std::vector<int> ranks;
  for (int rank = 0; words >> rank; words.ignore(1)) ranks.push_back(rank);
  return ranks;
}

std::string timed_out(const Operation& operation, std::span<const int> peers) {
  return fmt::format("{}: {}{}", operation.name, kTimedOut,
                     name_ranks(operation, peers));
}

std::string interrupted(const Operation& operation, std::span<const int> peers,
                        std::string_view reason) {
  if (peers.empty())
    return fmt::format("{}: interrupted ({})", operation.name, reason);
  return fmt::format("{}: interrupted ({}) while waiting for {}",
                     operation.name, reason, name_ranks(operation, peers));
}

std::string gave_up(int peer, std::string_view reason) {
  return fmt::format("rank {}{}{}", peer, kGaveUp, reason);
}

std::string gave_up(const Operation& operation, int peer,
                    std::string_view reason) {
  return fmt::format("{}: {}", operation.name,
                     gave_up(name_of(operation, peer), reason));
}

bool tells_of_a_peer(std::string_view message) noexcept {
  // Matches "all_reduce: rank 1 gave up: ...", but not "... this rank gave up:
  // ...".
  constexpr std::string_view kRank = "rank ";
  for (std::size_t at = message.find(kRank); at != std::string_view::npos;
       at = message.find(kRank, at + 1)) {
    std::string_view rest = message.substr(at + kRank.size());
    const std::size_t digits = rest.find_first_not_of("0123456789");
    if (digits == 0 || digits == std::string_view::npos) continue;
    if (rest.substr(digits).starts_with(kGaveUp)) return true;
  }
  return false;
}

std::string left(const Operation& operation, int peer) {
  return fmt::format("{}: rank {} {}", operation.name, name_of(operation, peer),
                     kLeft);
}

std::string this_rank_gave_up(const Operation& operation,
                              std::string_view reason) {
  return fmt::format("{}: this rank gave up: {}", operation.name, reason);
}

std::string other_call(const Operation& operation, int peer,
                       std::string_view its_name, std::uint64_t its_sequence) {
  return fmt::format("{}: rank {} is in {} (exchange {}){}{}", operation.name,
                     name_of(operation, peer), its_name, its_sequence,
                     kElsewhere, operation.sequence);
}

std::string wrong_size(const Operation& operation, int peer,
                       std::size_t sent_bytes, std::size_t expected_bytes) {
  return fmt::format("{}: rank {} sent {}{}{} were expected", operation.name,
                     name_of(operation, peer), sent_bytes, kWrongSize,
                     expected_bytes);
}

}  // namespace thinwire::comm::failure
