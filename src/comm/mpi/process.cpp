// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/process.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <utility>

#include "comm/completion.h"
#include "comm/mpi/backoff.h"
#include "comm/queue.h"
#include "core/require.h"

namespace thinwire::comm::mpi {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kFlushAtExit = std::chrono::seconds(1);

bool is_finalized() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized != 0;
}

// Returns the queue of the thread that initializes MPI and must also finalize
// it. Other threads can stop waiting for a job. The queue is never destroyed,
// because its thread may be stuck in MPI.
Queue& main_thread() {
  static Queue* const queue = new Queue([](const std::string&) {});
  return *queue;
}

}  // namespace

void check(int result, std::string_view call) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw Error(ErrorCode::kCommFailure, fmt::format("{}: {}", call, text));
}

Process& Process::get() {
  static Process* const process = new Process;
  return *process;
}

std::unique_lock<std::mutex> Process::enter() {
  std::unique_lock lock(mutex_);
  if (!abandoned_.empty()) {
    throw Error(ErrorCode::kCommFailure,
                "this process no longer uses MPI, because of: " + abandoned_);
  }
  if (is_finalized())
    throw Error(ErrorCode::kCommFailure, "MPI has been finalized");
  return lock;
}

namespace {

// Raises the limits below which Open MPI over TCP sends at once, unless the
// user has set them. Above 64 KiB, the sender first asks the receiver. The
// answer queues behind traffic in the other direction, which halves a link's
// bandwidth. The answer also waits until a thread polls MPI, which may take
// long while other threads compute. The new limits cover messages of a bucket's
// size.
void tune_tcp() {
  setenv("OMPI_MCA_btl_tcp_eager_limit", "8454144", /*overwrite=*/0);
  setenv("OMPI_MCA_btl_tcp_rdma_pipeline_frag_size", "65536", 0);
}

void require_threads() {
  int provided = MPI_THREAD_SINGLE;
  check(MPI_Query_thread(&provided), "MPI_Query_thread");
  if (provided < MPI_THREAD_MULTIPLE) {
    throw Error(ErrorCode::kUnavailable,
                fmt::format("MPI must provide MPI_THREAD_MULTIPLE ({}), got {}",
                            MPI_THREAD_MULTIPLE, provided));
  }
}

}  // namespace

void Process::start(Deadline deadline) {
  {
    const auto lock = enter();
    if (comm_ != MPI_COMM_NULL) return;
    initialize(deadline);
    choose_tags();
  }
  duplicate(MPI_COMM_WORLD, &comm_, deadline);
}

// Checks the caller's handle and returns its communicator. Needs the lock.
MPI_Comm Process::callers(MPI_Fint handle) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized == 0) refuse("fortran_handle: MPI must be initialized first");
  require_threads();
  if (tags_per_group_ == 0) choose_tags();
  const MPI_Comm comm = MPI_Comm_f2c(handle);
  int between = 1;
  // A freed communicator is a null pointer in Open MPI.
  if (comm != MPI_COMM_NULL && comm != MPI_Comm{})
    check(MPI_Comm_test_inter(comm, &between), "MPI_Comm_test_inter");
  require(between == 0, "fortran_handle", "a handle of an intra-communicator",
          handle);
  return comm;
}

MPI_Comm Process::adopt(MPI_Fint handle, Deadline deadline) {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm* to = nullptr;
  {
    const auto lock = enter();
    comm = callers(handle);
    to = &adopted_.emplace_back(MPI_COMM_NULL);
  }
  duplicate(comm, to, deadline);
  return *to;
}

void Process::initialize(Deadline deadline) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized == 0) {
    tune_tcp();
    initialize_within(deadline);
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN),
          "MPI_Comm_set_errhandler");
    std::atexit([] { get().finalize(); });
  }
  require_threads();
}

// Initializes MPI on another thread, because MPI waits without limit for all
// processes of the job. Needs the lock.
void Process::initialize_within(Deadline deadline) {
  const auto done = std::make_shared<Completion>("MPI_Init_thread");
  main_thread().push(done, [] {
    int provided = MPI_THREAD_SINGLE;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided),
          "MPI_Init_thread");
  });
  try {
    done->wait_for(
        std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()));
  } catch (const Error&) {
    failed_ = true;
    abandoned_ = "MPI could not be initialized";
    if (done->done()) throw;
    throw Error(ErrorCode::kCommFailure,
                "MPI_Init_thread: timed out waiting for the other ranks");
  }
}

// Divides a tag's bits: half of them number the groups, and the other half
// number the exchanges.
void Process::choose_tags() {
  int* highest = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &highest, &found),
        "MPI_Comm_get_attr");
  constexpr int kGuaranteed = 32767;  // by the MPI standard
  const int limit = found != 0 ? *highest : kGuaranteed;
  tags_per_group_ = 1;
  while (tags_per_group_ <= limit / tags_per_group_ / 4) tags_per_group_ *= 2;
  max_groups_ = limit / tags_per_group_;
}

void Process::duplicate(MPI_Comm comm, MPI_Comm* to, Deadline deadline) {
  MPI_Request request = MPI_REQUEST_NULL;
  int done = 0;
  try {
    {
      const auto lock = enter();
      check(MPI_Comm_idup(comm, to, &request), "MPI_Comm_idup");
    }
    for (Backoff backoff; done == 0; backoff.pause()) {
      if (Clock::now() >= deadline) {
        throw Error(ErrorCode::kCommFailure,
                    "MPI_Comm_idup: timed out waiting for the other ranks");
      }
      const auto lock = enter();
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup");
    }
    const auto lock = enter();
    check(MPI_Comm_set_errhandler(*to, MPI_ERRORS_RETURN),
          "MPI_Comm_set_errhandler");
  } catch (const Error& error) {
    abandon(error.what());
    throw;
  }
}

void Process::note_failure() {
  const std::lock_guard lock(mutex_);
  failed_ = true;
}

void Process::abandon(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  failed_ = true;
  if (abandoned_.empty()) abandoned_ = reason;
}

int Process::next_group() {
  const std::lock_guard lock(mutex_);
  return next_group_;
}

bool Process::reserve_group(int group) {
  const std::lock_guard lock(mutex_);
  if (group < next_group_) return false;
  next_group_ = group + 1;
  return true;
}

void Process::post_notice(MPI_Comm comm, int rank, int tag, std::string text) {
  drop_sent_notices();
  notices_.push_back({std::move(text), MPI_REQUEST_NULL});
  Notice& notice = notices_.back();
  check(MPI_Isend(notice.text.data(), static_cast<int>(notice.text.size()),
                  MPI_BYTE, rank, tag, comm, &notice.request),
        "MPI_Isend");
}

void Process::drop_sent_notices() {
  notices_.remove_if([](Notice& notice) {
    int done = 0;
    return MPI_Test(&notice.request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
           done != 0;
  });
}

void Process::flush_notices(std::chrono::milliseconds time) {
  const auto end = Clock::now() + time;
  for (Backoff backoff; Clock::now() < end; backoff.pause()) {
    const auto lock = enter();
    drop_sent_notices();
    if (notices_.empty()) return;
  }
}

void Process::count_transport(int change) {
  const std::lock_guard lock(mutex_);
  transports_ += change;
}

// Finalizes MPI at exit, unless a communicator still exists. If one exists, the
// program ends unexpectedly, and waiting for peers could hang.
void Process::finalize() noexcept {
  try {
    flush_notices(kFlushAtExit);
    const auto lock = enter();
    // The transport that make() creates always exists.
    if (failed_ || transports_ > 1) return;
    const auto done = std::make_shared<Completion>("MPI_Finalize");
    main_thread().push(done, [] { check(MPI_Finalize(), "MPI_Finalize"); });
    done->wait();
  } catch (const std::exception&) {
    // MPI has been abandoned, or the program has finalized it.
  }
}

}  // namespace thinwire::comm::mpi
