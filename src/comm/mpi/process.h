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

/// The one MPI of this process: whether it can be used, and what groups share.
/// Never destroyed, because MPI may still look at what it holds.
class Process {
 public:
  static Process& get();

  /// The lock that every MPI call is made under, so that none is running when
  /// MPI is abandoned. Throws Error(kCommFailure) if it was, or is finalized.
  [[nodiscard]] std::unique_lock<std::mutex> enter();

  /// Initializes MPI if nobody has. Collective over the job. Throws
  /// Error(kUnavailable) if MPI does not support threads, Error(kCommFailure)
  /// if a rank has not come by the deadline.
  void start(Deadline deadline);

  /// Returns a duplicate of a communicator that the caller's MPI has made, and
  /// keeps it until the process ends. Collective over it. Throws
  /// Error(kInvalidArgument) if the handle is not one of an intra-communicator,
  /// Error(kFailedPrecondition) if MPI is not initialized, and otherwise as
  /// start() does.
  [[nodiscard]] MPI_Comm adopt(MPI_Fint handle, Deadline deadline);

  /// From now on MPI is not finalized: a lost peer would make that hang.
  void note_failure();
  /// From now on no MPI call is made, so that messages which never ended leave
  /// their memory alone.
  void abandon(std::string_view reason);

  /// A duplicate of `comm`. Collective over it. The handle at `to` must stay
  /// where it is until MPI is abandoned.
  void duplicate(MPI_Comm comm, MPI_Comm* to, Deadline deadline);

  /// The communicator that the groups of the job send on, which differ in their
  /// tags.
  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }
  [[nodiscard]] int tags_per_group() const noexcept { return tags_per_group_; }
  [[nodiscard]] int max_groups() const noexcept { return max_groups_; }

  /// The lowest group number that this process has never used.
  [[nodiscard]] int next_group();
  /// False if `group` may be in use here already.
  [[nodiscard]] bool reserve_group(int group);

  /// Sends a short text without waiting. Needs the lock.
  void post_notice(MPI_Comm comm, int rank, int tag, std::string text);
  /// Gives notices up to `time` to leave. Takes the lock.
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

  std::mutex mutex_;  ///< Guards all below.
  bool failed_ = false;
  std::string abandoned_;  ///< Why; empty while MPI can be used.
  MPI_Comm comm_ = MPI_COMM_NULL;
  int tags_per_group_ = 0;
  int max_groups_ = 0;
  int next_group_ = 1;
  int transports_ = 0;
  std::list<MPI_Comm> adopted_;
  std::list<Notice> notices_;  ///< A list: MPI reads the texts where they are.
};

}  // namespace thinwire::comm::mpi
