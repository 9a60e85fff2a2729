// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/process.h"
#include "thinwire/comm/transport.h"

namespace thinwire::comm::mpi {

/// A group of ranks of an MPI communicator, with tags that no other group uses.
/// Only the initialization of MPI blocks. All other operations are polled, so
/// that time-outs hold in any state of the peers.
///
/// A message of 0 bytes is not sent. If a rank sends and its peer expects
/// nothing, the sender notices at its time-out, unless MPI could buffer the
/// message.
class MpiTransport final : public Transport {
 public:
  /// `members[r]` is the rank in `comm` of rank r of this group.
  MpiTransport(MPI_Comm comm, std::vector<int> members, int rank, int group);
  /// Returns the group of all ranks of `comm`. It must be the first group on
  /// it.
  [[nodiscard]] static std::unique_ptr<MpiTransport> of_all(MPI_Comm comm);
  ~MpiTransport() override;
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  [[nodiscard]] std::string_view name() const noexcept override {
    return "mpi";
  }
  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int size() const noexcept override {
    return static_cast<int>(members_.size());
  }
  void exchange(std::span<const SendMessage> sends,
                std::span<const RecvMessage> receives,
                const Operation& operation) override;
  [[nodiscard]] std::unique_ptr<Transport> split(
      int color, int key, const Operation& operation) override;
  void give_up(std::string_view reason) noexcept override;

 private:
  enum class Notice : char { kLeft = 'L', kGaveUp = 'G' };
  struct Departure {
    bool gave_up = false;
    std::string reason;
    std::chrono::steady_clock::time_point seen;
  };
  /// The purpose of one request.
  struct Part {
    int peer = 0;
    void* to = nullptr;      ///< Destination of a receive.
    std::size_t before = 0;  ///< Bytes of the message in earlier parts.
    std::size_t bytes = 0;
    std::size_t message_bytes = 0;
  };

  template <class Post>
  void run(const Operation& operation, Post post);
  void post_send(const SendMessage& message, int tag);
  void await(const RecvMessage& message);
  void receive_arrived(const Operation& operation);
  void complete(const Operation& operation);
  bool test(const Operation& operation);
  void check_size(const Part& part, const MPI_Status& status,
                  const Operation& operation) const;
  void check_usable(const Operation& operation) const;
  void require_none_gave_up(const Operation& operation) const;
  [[nodiscard]] std::vector<int> waited_for() const;
  [[nodiscard]] int agree_on_group(const Operation& operation);
  void receive_notices();
  void announce(Notice kind, std::string_view reason);

  [[nodiscard]] int notice_tag() const noexcept;
  [[nodiscard]] int tag_of(const Operation& operation) const noexcept;

  Process& process_;
  const MPI_Comm comm_;
  const std::vector<int> members_;
  const int rank_;
  const int group_;

  std::vector<MPI_Request> requests_;
  std::vector<Part> parts_;           ///< one per request
  std::vector<std::size_t> awaited_;  ///< Parts that have not arrived.
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::vector<std::optional<Departure>> departed_;  ///< Per rank of the group.
  bool any_departed_ = false;

  std::mutex announce_mutex_;
  bool announced_ = false;
  std::string reason_;  ///< Written before gave_up_ is set.
  std::atomic<bool> gave_up_ = false;
};

}  // namespace thinwire::comm::mpi
