// SPDX-License-Identifier: Apache-2.0
// failure_program MODE small|large [run | FILE ERRORS]: one rank of an MPI job
// in which rank 1 fails as MODE says. Every rank prints the error it gets,
// waits until ERRORS ranks have printed theirs, which they count in FILE, and
// exits with 1. With "run" all that is left to comm::run(). Started by
// mpi_failure_test.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "thinwire/comm/agreement.h"
#include "thinwire/comm/registry.h"
#include "thinwire/comm/run.h"
#include "thinwire/core/env.h"
#include "thinwire/core/error.h"

namespace {

using thinwire::comm::Communicator;

constexpr std::size_t kSmall = 33;
constexpr std::size_t kLarge = 4'000'000;  // far more than MPI buffers

void hang() {
  for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
}

// What rank 1 does instead of the second all_reduce.
void fail(const std::string& mode, Communicator& comm) {
  if (mode == "kill") static_cast<void>(std::raise(SIGKILL));
  if (mode == "stop") static_cast<void>(std::raise(SIGSTOP));
  if (mode == "hang") hang();
  if (mode == "throw") throw std::runtime_error("disk full");
  if (mode == "size") {
    std::vector<float> data(kSmall + 3);
    comm.all_reduce(data);
  }
  if (mode == "other") comm.barrier();
  if (mode == "interrupt") {
    thinwire::comm::interrupt("asked to stop");
    std::vector<float> data(kSmall);
    comm.all_reduce(data);
  }
}

void run(const std::string& mode, std::size_t elements, Communicator& comm) {
  std::vector<float> data(elements, 1.0f);
  comm.all_reduce(data);
  if (mode == "disagree")
    thinwire::comm::require_same(comm, "options", std::to_string(comm.rank()));
  if (comm.rank() == 1 && mode != "none") {
    if (mode == "leave") return;
    fail(mode, comm);
  } else {
    // Some are queued when the failure comes.
    std::vector<std::vector<float>> more(3, data);
    std::vector<thinwire::comm::Work> works;
    for (auto& values : more) works.push_back(comm.queue_all_reduce(values));
    for (const auto& work : works) work.wait();
  }
  comm.barrier();
}

// The launcher ends all others a second after the first one has failed, so the
// first one stays until all have printed; not for ever, if one of them cannot.
void wait_until_printed(const char* file, std::uintmax_t errors) {
  using Clock = std::chrono::steady_clock;
  std::ofstream(file, std::ios::app) << '.';
  const auto last = Clock::now() + std::chrono::seconds(10);
  while (std::filesystem::file_size(file) < errors && Clock::now() < last)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  std::signal(SIGTERM, [](int) { thinwire::comm::interrupt("SIGTERM"); });
  const std::string mode = argv[1];
  const bool large = argc > 2 && std::strcmp(argv[2], "large") == 0;
  const auto body = [&](Communicator& comm) {
    run(mode, large ? kLarge : kSmall, comm);
  };
  if (mode == "absent" && thinwire::env::launched_rank() == 1) return 0;
  if (argc > 3 && std::strcmp(argv[3], "run") == 0)
    return thinwire::comm::run(body);
  try {
    body(*thinwire::comm::from_environment());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    if (argc > 4) wait_until_printed(argv[3], std::stoull(argv[4]));
    return 1;
  }
  return 0;
}
