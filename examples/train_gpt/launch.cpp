// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <mutex>

#include "examples/train_gpt/agreed_failure.h"
#include "thinwire/comm/local.h"
#include "thinwire/comm/registry.h"
#include "thinwire/core/env.h"

namespace thinwire::train_gpt {
namespace {

std::unique_ptr<comm::Communicator> make_communicator(const std::string& name) {
  if (name.empty()) return comm::from_environment();
  const auto all = comm::backends();
  const auto named =
      std::find_if(all.begin(), all.end(),
                   [&](const auto& backend) { return backend.name == name; });
  return named->make({.timeout = env::timeout()});
}

}  // namespace

void Launch::run(const Options& options, const Body& body) {
  if (options.comm != "local") {
    run_process(options, body);
    return;
  }
  comm::run_local_ranks(options.ranks.value_or(1),
                        [&](comm::Communicator& comm) { run_rank(comm, body); },
                        {.timeout = env::timeout()});
}

void Launch::run_rank(comm::Communicator& comm, const Body& body) {
  try {
    const Ending its = body(comm);
    const std::lock_guard lock(mutex_);
    ending_ = std::max(ending_, its);
  } catch (const AgreedFailure&) {
    throw;
  } catch (const std::exception& error) {
    if (comm.size() == 1) throw;
    throw std::runtime_error(
        fmt::format("rank {}: {}", comm.rank(), error.what()));
  }
}

void Launch::run_process(const Options& options, const Body& body) {
  std::exception_ptr agreed;
  {
    const auto comm = make_communicator(options.comm);
    is_broken_ = comm->size() > 1;
    try {
      run_rank(*comm, body);
    } catch (const AgreedFailure&) {
      // Unwinding would tell the others that this rank gave up, while they may
      // still be reading the agreement.
      agreed = std::current_exception();
    }
    is_broken_ = false;
  }
  if (agreed) std::rethrow_exception(agreed);
}

}  // namespace thinwire::train_gpt
