// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/run.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/failure.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/comm/registry.h"
#include "thinwire/core/env.h"
#include "thinwire/core/error.h"

namespace thinwire::comm {
namespace {

using std::chrono::milliseconds;

// Time within which all ranks fail if each fails independently.
constexpr milliseconds kTogether{1000};

// Removes the stack trace that LibTorch appends to messages.
std::string without_stack(std::string_view text) {
  text = text.substr(0, text.find("\nException raised from"));
  while (text.ends_with('\n')) text.remove_suffix(1);
  return std::string(text);
}

// A second group of all ranks, for use after the first communicator has failed.
class Ending {
 public:
  explicit Ending(Communicator& comm)
      : all_(static_cast<std::size_t>(comm.size())),
        comm_(second_group(comm)) {}

  [[nodiscard]] bool can_ask() const noexcept { return comm_ != nullptr; }

  // Returns whether every rank arrives here within kTogether.
  bool all_are_here() noexcept {
    try {
      comm_->queue_all_gather(own_, all_).wait(kTogether);
      return true;
    } catch (const std::exception&) {
      comm_->give_up("it has ended");
      return false;
    }
  }

 private:
  std::vector<std::uint8_t> own_ = std::vector<std::uint8_t>(1);
  std::vector<std::uint8_t> all_;
  std::unique_ptr<Communicator> comm_;  // last: it uses the other members
};

std::ostream& stream(std::ostream* errors) {
  return errors == nullptr ? std::cerr : *errors;
}

// `rank` is empty if the process has no peers.
void report(std::ostream& errors, std::optional<int> rank,
            std::string_view cause) {
  const std::string who = rank ? fmt::format("rank {}", *rank) : "error";
  errors << fmt::format("{}: {}\n", who, without_stack(cause)) << std::flush;
}

std::optional<int> rank_of(const Communicator& comm) {
  if (comm.size() == 1) return std::nullopt;
  return comm.rank();
}

// Ends a rank whose body threw. Notifies the others last, because a rank that
// is just leaving its last exchange must not report this end as the cause. If
// all ranks have failed, none of them is in an exchange with this rank.
void end(Communicator& comm, Ending& ending, std::string_view cause,
         std::ostream& errors) {
  if (failure::tells_of_a_peer(cause)) {
    // The other rank has reported.
  } else if (!ending.can_ask()) {
    report(errors, rank_of(comm), cause);
    if (comm.size() > 1) std::this_thread::sleep_for(kTogether);
  } else {
    const bool together = ending.all_are_here();
    if (!together || comm.rank() == 0) report(errors, rank_of(comm), cause);
    if (together) ending.all_are_here();  // rank 0 has reported
  }
  comm.give_up(without_stack(cause));
}

}  // namespace

namespace detail {

int run(Communicator& comm, const BodyFunction& body, std::ostream* to) {
  std::ostream& errors = stream(to);
  std::string cause;
  try {
    Ending ending(comm);
    try {
      return body(comm);
    } catch (const std::exception& error) {
      cause = error.what();
    } catch (...) {
      cause = "an exception that is no std::exception";
    }
    end(comm, ending, cause, errors);
  } catch (const std::exception& error) {  // already at the start
    report(errors, rank_of(comm), error.what());
  }
  return 1;
}

int run(std::unique_ptr<Communicator> comm, const BodyFunction& body,
        std::ostream* to) {
  if (!comm)
    throw Error(ErrorCode::kInvalidArgument, "run: comm must not be null");
  return run(*comm, body, to);
}

int run(const BodyFunction& body, std::ostream* to) {
  std::unique_ptr<Communicator> comm;
  try {
    comm = from_environment();
  } catch (const std::exception& error) {
    report(stream(to), env::launched_rank(), error.what());
    return 1;
  }
  return run(*comm, body, to);
}

}  // namespace detail

}  // namespace thinwire::comm
