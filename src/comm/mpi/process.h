// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <chrono>
#include <list>
#include <mutex>
#include <string>
#include <string_view>

namespace thinwire::comm::mpi {

using Deadline = std::chrono::steady_clock::time_point;

/// Throws Error(kCommFailure) with MPI's text unless `result` is MPI_SUCCESS.
void check(int result, std::string_view call);

/// The MPI library of this process: whether it can be used, and the state that
/// groups share. Never destroyed, because MPI may still read its members.
class Process {
 public:
  static Process& get();

  /// Returns the lock under which every MPI call is made, so that no call is
  /// running when MPI is abandoned. Throws Error(kCommFailure) if MPI has been
  /// abandoned or finalized.
  [[nodiscard]] std::unique_lock<std::mutex> enter();

  /// Initializes MPI unless that has been done. Collective over the job. Throws
  /// Error(kUnavailable) if MPI does not support threads, and
  /// Error(kCommFailure) if a rank has not come by the deadline.
  void start(Deadline deadline);

  /// Returns a duplicate of one of the caller's communicators and keeps it
  /// until the process ends. Collective over it. Throws Error(kInvalidArgument)
  /// if this is not the handle of an intra-communicator, and
  /// Error(kFailedPrecondition) if MPI is not initialized. Otherwise throws
  /// like start().
  [[nodiscard]] MPI_Comm adopt(MPI_Fint handle, Deadline deadline);

  /// Disables MPI_Finalize, which would hang because a peer is lost.
  void note_failure();
  /// Forbids all further MPI calls, so that unfinished messages no longer
  /// access their memory.
  void abandon(std::string_view reason);

  /// Duplicates `comm`. Collective over it. The handle at `to` must keep its
  /// address until MPI is abandoned.
  void duplicate(MPI_Comm comm, MPI_Comm* to, Deadline deadline);

  /// Returns the communicator that all groups of the job use, with different
  /// tags.
  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }
  [[nodiscard]] int tags_per_group() const noexcept { return tags_per_group_; }
  [[nodiscard]] int max_groups() const noexcept { return max_groups_; }

  /// Returns the lowest group number that this process has never used.
  [[nodiscard]] int next_group();
  /// Returns false if this process may already use `group`.
  [[nodiscard]] bool reserve_group(int group);

  /// Sends a short text without waiting. Needs the lock.
  void post_notice(MPI_Comm comm, int rank, int tag, std::string text);
  /// Waits up to `time` until notices have been sent. Takes the lock.
  void flush_notices(std::chrono::milliseconds time);

  void count_transport(int change);

 private:
  struct Notice {
    std::string text;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  Process() = default;
  void initialize(Deadline deadline);
  void initialize_within(Deadline deadline);
  [[nodiscard]] MPI_Comm callers(MPI_Fint handle);
  void choose_tags();
  void finalize() noexcept;
  void drop_sent_notices();

  std::mutex mutex_;  ///< Guards all members below.
  bool failed_ = false;
  std::string abandoned_;  ///< The reason, or "" while MPI can be used.
  MPI_Comm comm_ = MPI_COMM_NULL;
  int tags_per_group_ = 0;
  int max_groups_ = 0;
  int next_group_ = 1;
  int transports_ = 0;
  std::list<MPI_Comm> adopted_;
  std::list<Notice> notices_;  ///< A list: MPI reads the texts in place.
};

}  // namespace thinwire::comm::mpi
