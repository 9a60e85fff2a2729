// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "comm/failure.h"
#include "comm/membership.h"
#include "comm/mpi/backoff.h"
#include "thinwire/core/error.h"

namespace thinwire::comm::mpi {
namespace {

using Clock = std::chrono::steady_clock;

// MPI counts are ints, so longer messages are sent in parts, which arrive in
// order.
constexpr std::size_t kPartBytes = std::size_t{1} << 30;
// Longest reason in a notice, short enough for MPI to buffer it.
constexpr std::size_t kNoticeBytes = 512;
// Grace period for messages that a rank sent before it left.
constexpr auto kLeftGrace = std::chrono::seconds(1);
// Time that a rank which gives up allows MPI to deliver its notices.
constexpr auto kNoticeTime = std::chrono::milliseconds(50);

[[noreturn]] void fail(const std::string& text) {
  throw Error(ErrorCode::kCommFailure, text);
}

}  // namespace

MpiTransport::MpiTransport(MPI_Comm comm, std::vector<int> members, int rank,
                           int group)
    : process_(Process::get()),
      comm_(comm),
      members_(std::move(members)),
      rank_(rank),
      group_(group),
      departed_(members_.size()) {
  process_.count_transport(1);
}

std::unique_ptr<MpiTransport> MpiTransport::of_all(MPI_Comm comm) {
  int rank = 0;
  int size = 0;
  {
    const auto lock = Process::get().enter();
    check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
    check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  }
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  constexpr int kGroup = 0;
  return std::make_unique<MpiTransport>(comm, std::move(members), rank, kGroup);
}

MpiTransport::~MpiTransport() {
  try {
    announce(Notice::kLeft, {});
  } catch (const std::exception&) {
    // MPI is no longer used; peers notice by their time-out.
  }
  process_.count_transport(-1);
}

int MpiTransport::notice_tag() const noexcept {
  return group_ * process_.tags_per_group();
}

int MpiTransport::tag_of(const Operation& operation) const noexcept {
  const auto tags = static_cast<std::uint64_t>(process_.tags_per_group() - 1);
  return notice_tag() + 1 + static_cast<int>(operation.sequence % tags);
}

// Runs `post`, which may leave a pending request. Any error therefore ends the
// use of MPI; see mpi.h.
template <class Post>
void MpiTransport::run(const Operation& operation, Post post) {
  try {
    requests_.clear();
    parts_.clear();
    awaited_.clear();
    {
      const auto lock = process_.enter();
      receive_notices();
      check_usable(operation);
      post();
    }
    indices_.resize(requests_.size());
    statuses_.resize(requests_.size());
    complete(operation);
  } catch (const std::exception& error) {
    give_up(error.what());
    process_.abandon(error.what());
    throw;
  }
}

void MpiTransport::exchange(std::span<const SendMessage> sends,
                            std::span<const RecvMessage> receives,
                            const Operation& operation) {
  run(operation, [&] {
    for (const RecvMessage& message : receives) await(message);
    for (const SendMessage& message : sends)
      post_send(message, tag_of(operation));
  });
}

// Records a receive without posting it. Open MPI writes past the end of a
// posted receive if another process on the machine sends a longer message.
void MpiTransport::await(const RecvMessage& message) {
  for (std::size_t begin = 0; begin < message.bytes; begin += kPartBytes) {
    awaited_.push_back(parts_.size());
    requests_.push_back(MPI_REQUEST_NULL);
    parts_.push_back(
        {message.peer, static_cast<std::byte*>(message.data) + begin, begin,
         std::min(kPartBytes, message.bytes - begin), message.bytes});
  }
}

// Receives the messages that have arrived. Needs the lock.
void MpiTransport::receive_arrived(const Operation& operation) {
  constexpr int kNobody = -1;
  int behind = kNobody;  // peer whose earlier part has not arrived
  std::erase_if(awaited_, [&](std::size_t index) {
    const Part& part = parts_[index];
    if (part.peer == behind) return false;
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check(MPI_Improbe(members_[static_cast<std::size_t>(part.peer)],
                      tag_of(operation), comm_, &found, &message, &status),
          "MPI_Improbe");
    if (found == 0) {
      behind = part.peer;
      return false;
    }
    check_size(part, status, operation);
    check(MPI_Imrecv(part.to, static_cast<int>(part.bytes), MPI_BYTE, &message,
                     &requests_[index]),
          "MPI_Imrecv");
    return true;
  });
}

void MpiTransport::post_send(const SendMessage& message, int tag) {
  const int destination = members_[static_cast<std::size_t>(message.peer)];
  for (std::size_t begin = 0; begin < message.bytes; begin += kPartBytes) {
    const std::size_t bytes = std::min(kPartBytes, message.bytes - begin);
    parts_.push_back({message.peer, nullptr, begin, bytes, message.bytes});
    check(MPI_Isend(static_cast<const std::byte*>(message.data) + begin,
                    static_cast<int>(bytes), MPI_BYTE, destination, tag, comm_,
                    &requests_.emplace_back(MPI_REQUEST_NULL)),
          "MPI_Isend");
  }
}

void MpiTransport::complete(const Operation& operation) {
  for (Backoff backoff;; backoff.pause()) {
    {
      const auto lock = process_.enter();
      const bool done = test(operation);
      if (done || backoff.sleeping() || interrupted()) receive_notices();
      if (done) return require_none_gave_up(operation);
    }
    check_usable(operation);
    // The deadline is checked after the first poll, because a process that was
    // suspended before the exchange began has not missed any peer yet.
    if (Clock::now() >= operation.deadline)
      fail(failure::timed_out(operation, waited_for()));
  }
}

// Returns whether all requests have completed. Needs the lock.
bool MpiTransport::test(const Operation& operation) {
  receive_arrived(operation);
  int completed = 0;
  const int result =
      MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(),
                   &completed, indices_.data(), statuses_.data());
  if (result == MPI_ERR_IN_STATUS) {
    for (int i = 0; i < completed; ++i) {
      const auto index = static_cast<std::size_t>(i);
      const Part& part = parts_[static_cast<std::size_t>(indices_[index])];
      check(statuses_[index].MPI_ERROR,
            fmt::format("{} with rank {}", operation.name, part.peer));
    }
  } else {
    check(result, operation.name);
  }
  return awaited_.empty() && std::all_of(requests_.begin(), requests_.end(),
                                         [](MPI_Request request) {
                                           return request == MPI_REQUEST_NULL;
                                         });
}

void MpiTransport::check_size(const Part& part, const MPI_Status& status,
                              const Operation& operation) const {
  MPI_Count arriving = 0;
  MPI_Get_elements_x(&status, MPI_BYTE, &arriving);
  if (arriving == static_cast<MPI_Count>(part.bytes)) return;
  fail(failure::wrong_size(operation, part.peer,
                           part.before + static_cast<std::size_t>(arriving),
                           part.message_bytes));
}

std::vector<int> MpiTransport::waited_for() const {
  std::vector<int> peers;
  for (const std::size_t index : awaited_) peers.push_back(parts_[index].peer);
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] != MPI_REQUEST_NULL) peers.push_back(parts_[i].peer);
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

// Reports a peer's failure before an interruption, because a launcher
// interrupts all other ranks when one rank has failed.
void MpiTransport::check_usable(const Operation& operation) const {
  if (gave_up_) fail(failure::this_rank_gave_up(operation, reason_));
  if (any_departed_) {
    for (const int peer : waited_for()) {
      const auto& departure = departed_[static_cast<std::size_t>(peer)];
      if (!departure) continue;
      if (departure->gave_up)
        fail(failure::gave_up(operation, peer, departure->reason));
      if (Clock::now() >= departure->seen + kLeftGrace)
        fail(failure::left(operation, peer));
    }
  }
  if (const char* reason = interrupted())
    fail(failure::interrupted(operation, waited_for(), reason));
}

// Fails if a peer gave up. The peer may have freed memory that MPI still read
// from, but first sent its notice.
void MpiTransport::require_none_gave_up(const Operation& operation) const {
  if (!any_departed_) return;
  for (const Part& part : parts_) {
    if (part.to == nullptr) continue;
    const auto& departure = departed_[static_cast<std::size_t>(part.peer)];
    if (departure && departure->gave_up)
      fail(failure::gave_up(operation, part.peer, departure->reason));
  }
}

// Records the notices that have arrived. Needs the lock.
void MpiTransport::receive_notices() {
  for (;;) {
    int found = 0;
    MPI_Status status;
    check(MPI_Iprobe(MPI_ANY_SOURCE, notice_tag(), comm_, &found, &status),
          "MPI_Iprobe");
    if (found == 0) return;
    int length = 0;
    MPI_Get_count(&status, MPI_BYTE, &length);
    std::string text(static_cast<std::size_t>(length), '\0');
    check(MPI_Recv(text.data(), length, MPI_BYTE, status.MPI_SOURCE,
                   notice_tag(), comm_, MPI_STATUS_IGNORE),
          "MPI_Recv");
    const auto member =
        std::find(members_.begin(), members_.end(), status.MPI_SOURCE);
    if (member == members_.end() || text.empty()) continue;
    departed_[static_cast<std::size_t>(member - members_.begin())] =
        Departure{.gave_up = text[0] == static_cast<char>(Notice::kGaveUp),
                  .reason = text.substr(1),
                  .seen = Clock::now()};
    any_departed_ = true;
  }
}

void MpiTransport::give_up(std::string_view reason) noexcept {
  try {
    announce(Notice::kGaveUp, reason);
  } catch (const std::exception&) {
    // MPI is no longer used; peers notice by their time-out.
  }
}

// Sends the notices once. A second caller waits for the first, because run()
// then abandons MPI, after which no notice could be sent.
void MpiTransport::announce(Notice kind, std::string_view reason) {
  const std::lock_guard announcing(announce_mutex_);
  if (std::exchange(announced_, true)) return;
  reason_ = reason.substr(0, kNoticeBytes);
  if (kind == Notice::kGaveUp) {
    gave_up_ = true;
    process_.note_failure();
  }
  {
    const auto lock = process_.enter();
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_) continue;
      process_.post_notice(comm_, members_[static_cast<std::size_t>(peer)],
                           notice_tag(), static_cast<char>(kind) + reason_);
    }
  }
  if (kind == Notice::kGaveUp) process_.flush_notices(kNoticeTime);
}

std::unique_ptr<Transport> MpiTransport::split(int color, int key,
                                               const Operation& operation) {
  const auto all = gather_values<Membership>(*this, {color, key}, operation);
  const int group = agree_on_group(operation);
  if (color < 0) return nullptr;
  std::vector<int> members = members_of(all, color);
  const auto self = std::find(members.begin(), members.end(), rank_);
  const auto rank = static_cast<int>(self - members.begin());
  for (int& member : members)
    member = members_[static_cast<std::size_t>(member)];
  return std::make_unique<MpiTransport>(comm_, std::move(members), rank, group);
}

// Returns a number that no member has used for any group. The groups of one
// split share the number, because they have no rank in common. A second round
// is necessary only if two threads split different groups at once.
int MpiTransport::agree_on_group(const Operation& operation) {
  for (;;) {
    const std::vector<int> proposed =
        gather_values(*this, process_.next_group(), operation);
    const int group = *std::max_element(proposed.begin(), proposed.end());
    if (group >= process_.max_groups()) {
      fail(fmt::format("{}: at most {} groups can be made in one MPI job",
                       operation.name, process_.max_groups() - 1));
    }
    const int reserved = process_.reserve_group(group) ? 1 : 0;
    const std::vector<int> all = gather_values(*this, reserved, operation);
    if (std::count(all.begin(), all.end(), 1) == size()) return group;
  }
}

}  // namespace thinwire::comm::mpi
