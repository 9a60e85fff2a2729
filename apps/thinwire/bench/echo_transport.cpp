// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/bench/echo_transport.h"

#include <algorithm>
#include <cstring>

#include "thinwire/core/error.h"

namespace thinwire::apps::bench {

void EchoTransport::exchange(std::span<const comm::SendMessage> sends,
                             std::span<const comm::RecvMessage> receives,
                             const comm::Operation&) {
  for (const comm::RecvMessage& receive : receives)
    for (const comm::SendMessage& send : sends)
      if (send.peer == receive.peer)
        std::memcpy(receive.data, send.data,
                    std::min(receive.bytes, send.bytes));
}

std::unique_ptr<comm::Transport> EchoTransport::split(int, int,
                                                      const comm::Operation&) {
  throw Error(ErrorCode::kUnavailable, "an echo has no groups to split");
}

}  // namespace thinwire::apps::bench
