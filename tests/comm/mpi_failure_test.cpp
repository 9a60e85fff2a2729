// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <string>

#include "support/folder.h"

namespace thinwire::comm::mpi_failure_test {
namespace {

using Clock = std::chrono::steady_clock;

struct Outcome {
  int exit_code = -1;
  std::string output;
  std::chrono::duration<double> seconds{};
};

// failure_program on three ranks, of which rank 1 fails. A job that hangs is
// ended after a minute.
Outcome run_job(const std::string& arguments, const std::string& timeout) {
  const std::string command = "THINWIRE_COMM=mpi THINWIRE_TIMEOUT=" + timeout +
                              " timeout -k 5 60 " THINWIRE_MPIEXEC " " +
                              THINWIRE_MPIEXEC_NUMPROC_FLAG " 3 " +
                              THINWIRE_FAILURE_PROGRAM " " + arguments +
                              " 2>&1";
  Outcome outcome;
  const auto begin = Clock::now();
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer;
  while (const std::size_t n =
             std::fread(buffer.data(), 1, buffer.size(), pipe))
    outcome.output.append(buffer.data(), n);
  const int status = ::pclose(pipe);
  outcome.seconds = Clock::now() - begin;
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos;
       at = text.find(part, at + part.size()))
    ++found;
  return found;
}

std::string size_of_messages(
    const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
}

// (the size of messages)
class MpiFailure : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string size = GetParam();

  // `errors` ranks print an error of all_reduce that has `part` in it.
  void expect(const std::string& mode, const std::string& timeout,
              std::size_t errors, const std::string& part,
              double most_seconds) const {
    const test::Folder folder;
    const Outcome outcome =
        run_job(mode + " " + size + " " + folder.in("printed") + " " +
                    std::to_string(errors),
                timeout);
    SCOPED_TRACE(outcome.output);
    EXPECT_GE(count(outcome.output, "error: "), errors);
    EXPECT_GE(count(outcome.output, "all_reduce: "), 1u);
    EXPECT_GE(count(outcome.output, part), 1u);
    EXPECT_EQ(count(outcome.output, "Sanitizer"), 0u);
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_NE(outcome.exit_code, 124) << "the job hung";
    EXPECT_LT(outcome.seconds.count(), most_seconds);
  }
};

// mpirun ends the job itself, with SIGTERM first.
TEST_P(MpiFailure, AKilledRankIsNamedByTheOthers) {
  expect("kill", "60s", 2, "interrupted (SIGTERM)", 20);
}

TEST_P(MpiFailure, AStoppedRankIsNamedAfterTheTimeOut) {
  expect("stop", "2s", 2, "timed out waiting for rank", 20);
}

TEST_P(MpiFailure, AHungRankIsNamedAfterTheTimeOut) {
  expect("hang", "2s", 2, "timed out waiting for rank", 20);
}

TEST_P(MpiFailure, ARankThatThrowsNotifiesTheOthers) {
  expect("throw", "60s", 3, "rank 1 gave up: its communicator was destroyed",
         20);
}

TEST_P(MpiFailure, DifferentSizesAreNamedOnAllRanks) {
  expect("size", "60s", 3, "bytes where", 20);
}

TEST_P(MpiFailure, DifferentCollectivesAreNamedOnAllRanks) {
  expect("other", "60s", 3, "bytes where", 20);
}

TEST_P(MpiFailure, ARankThatHasLeftIsNamed) {
  expect("leave", "60s", 1, "rank 1 has left", 20);
}

TEST_P(MpiFailure, AnInterruptedRankNotifiesTheOthers) {
  expect("interrupt", "60s", 3, "rank 1 gave up: all_reduce: interrupted", 20);
}

// A rank that ends before it has initialized MPI.
TEST_P(MpiFailure, ARankThatNeverStartsIsNoticedAfterTheTimeOut) {
  const Outcome outcome = run_job("absent " + size, "2s");
  SCOPED_TRACE(outcome.output);
  EXPECT_GE(count(outcome.output, "error: MPI_Init_thread: timed out"), 1u);
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.exit_code, 124) << "the job hung";
}

// ---- the same under comm::run(), which knows no sizes of messages

class MpiRunFailure : public MpiFailure {};

TEST_P(MpiRunFailure, SaysWhichRankCannotStart) {
  const Outcome outcome = run_job("absent " + size + " run", "2s");
  SCOPED_TRACE(outcome.output);
  EXPECT_GE(count(outcome.output, "rank 0: MPI_Init_thread: timed out") +
                count(outcome.output, "rank 2: MPI_Init_thread: timed out"),
            1u);
  EXPECT_EQ(outcome.exit_code, 1);
}

TEST_P(MpiRunFailure, PrintsTheCauseOnce) {
  const Outcome outcome = run_job("throw " + size + " run", "60s");
  SCOPED_TRACE(outcome.output);
  EXPECT_EQ(count(outcome.output, "rank 1: disk full\n"), 1u);
  EXPECT_EQ(count(outcome.output, "disk full"), 1u);
  EXPECT_EQ(count(outcome.output, "gave up"), 0u);
  EXPECT_EQ(outcome.exit_code, 1);
}

TEST_P(MpiRunFailure, PrintsOnceIfAllRanksFailTogether) {
  const Outcome outcome = run_job("disagree " + size + " run", "60s");
  SCOPED_TRACE(outcome.output);
  EXPECT_EQ(count(outcome.output, "options must be the same on all ranks"), 1u);
  EXPECT_EQ(outcome.exit_code, 1);
}

TEST_P(MpiRunFailure, NamesTheRanksItWaitedFor) {
  const Outcome outcome = run_job("hang " + size + " run", "2s");
  SCOPED_TRACE(outcome.output);
  EXPECT_GE(count(outcome.output, "timed out waiting for rank"), 1u);
  EXPECT_EQ(outcome.exit_code, 1);
}

TEST_P(MpiFailure, WithoutAFailureTheProgramSucceeds) {
  for (const char* const by_run : {"", " run"}) {
    const Outcome outcome = run_job("none " + size + by_run, "60s");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(outcome.output, "");
  }
}

INSTANTIATE_TEST_SUITE_P(Messages, MpiFailure,
                         ::testing::Values("small", "large"), size_of_messages);
INSTANTIATE_TEST_SUITE_P(Messages, MpiRunFailure, ::testing::Values("large"),
                         size_of_messages);

}  // namespace
}  // namespace thinwire::comm::mpi_failure_test
