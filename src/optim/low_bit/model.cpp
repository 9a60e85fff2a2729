// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/model.h"

#include "core/require.h"

namespace thinwire::optim {

std::unique_ptr<const comm::HostGroups> LowBitModel::groups_of(
    comm::Communicator& comm, bool scale_per_unit) {
  const comm::Hosts& hosts = comm.hosts();
  if (hosts.is_flat()) return nullptr;
  require(!scale_per_unit, "ranks_per_host",
          "1 with deepspeed semantics, whose exchanges are flat",
          hosts.ranks_per_host);
  return std::make_unique<const comm::HostGroups>(comm::split_by_host(comm));
}

}  // namespace thinwire::optim
