// SPDX-License-Identifier: Apache-2.0
#include "exchange/records/places.h"

namespace thinwire::exchange {

Places::Places(const comm::Communicator& comm, const comm::HostGroups* groups)
    : first(0),
      workers(static_cast<std::size_t>(comm.size())),
      own(static_cast<std::size_t>(comm.rank())) {
  if (groups == nullptr) return;
  workers = static_cast<std::size_t>(groups->between->size());
  first = static_cast<std::size_t>(groups->inside->rank()) * workers;
  own = first + static_cast<std::size_t>(groups->between->rank());
}

}  // namespace thinwire::exchange
