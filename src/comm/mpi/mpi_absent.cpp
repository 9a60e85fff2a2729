// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi.h"
#include "thinwire/core/error.h"

namespace thinwire::comm::mpi {

std::string why_unavailable() {
  return "this build has no MPI; install libopenmpi-dev or libmpich-dev and "
         "build again";
}

std::string version() { return {}; }

std::unique_ptr<Communicator> make(const CommunicatorOptions&) {
  throw Error(ErrorCode::kUnavailable, why_unavailable());
}

std::unique_ptr<Communicator> adopt(int, const CommunicatorOptions& options) {
  return make(options);
}

}  // namespace thinwire::comm::mpi
