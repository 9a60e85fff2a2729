// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <mutex>

#include "apps/train_gpt/agreed_failure.h"
#include "thinwire/comm/local.h"
#include "thinwire/comm/registry.h"
#include "thinwire/core/env.h"

namespace thinwire::train_gpt {
namespace {

std::unique_ptr<comm::Communicator> make_communicator(CommChoice choice) {
  if (choice == CommChoice::kEnvironment) return comm::from_environment();
  const auto all = comm::backends();
  const auto mpi =
      std::find_if(all.begin(), all.end(),
                   [](const auto& backend) { return backend.name == "mpi"; });
  return mpi->make({.timeout = env::timeout()});
}

// Runs `body`, and says which rank it was if it throws.
template <class Body>
auto with_rank_in_messages(const comm::Communicator& comm, Body&& body) {
  try {
    return body();
  } catch (const AgreedFailure&) {
    throw;
  } catch (const std::exception& error) {
    if (comm.size() == 1) throw;
    throw std::runtime_error(
        fmt::format("rank {}: {}", comm.rank(), error.what()));
  }
}

}  // namespace

void Launch::run(const Options& options,
                 const std::function<Ending(comm::Communicator&)>& body) {
  if (options.comm == CommChoice::kLocal) {
    run_threads(options, body);
  } else {
    run_process(options, body);
  }
}

void Launch::run_process(
    const Options& options,
    const std::function<Ending(comm::Communicator&)>& body) {
  std::exception_ptr agreed;
  {
    const auto comm = make_communicator(options.comm);
    is_broken_ = comm->size() > 1;
    try {
      ending_ = with_rank_in_messages(*comm, [&] { return body(*comm); });
    } catch (const AgreedFailure&) {
      // Unwinding would make the communicator tell the others, who may still
      // be reading the agreement, that this rank gave up.
      agreed = std::current_exception();
    }
    is_broken_ = false;
  }
  if (agreed) std::rethrow_exception(agreed);
}

void Launch::run_threads(
    const Options& options,
    const std::function<Ending(comm::Communicator&)>& body) {
  std::mutex mutex;
  comm::run_local_ranks(options.ranks,
                        [&](comm::Communicator& comm) {
                          try {
                            const Ending its = body(comm);
                            const std::lock_guard lock(mutex);
                            ending_ = std::max(ending_, its);
                          } catch (const Stopped&) {
                            throw;  // all of them, by the same signal
                          } catch (const std::exception&) {
                            with_rank_in_messages(comm, [] { throw; });
                          }
                        },
                        {.timeout = env::timeout()});
}

}  // namespace thinwire::train_gpt
