// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

#include "thinwire/comm/transport.h"
#include "thinwire/core/error.h"

namespace thinwire::apps::bench {

/// Rank 0 of a group whose other ranks answer each message with the message
/// itself. It shows the cost of a step for one rank without the network.
class EchoTransport final : public comm::Transport {
 public:
  explicit EchoTransport(int size) : size_(size) {}

  [[nodiscard]] std::string_view name() const noexcept override {
    return "echo";
  }
  [[nodiscard]] int rank() const noexcept override { return 0; }
  [[nodiscard]] int size() const noexcept override { return size_; }

  /// Copies the shorter size if a peer receives more or less than it should
  /// send.
  void exchange(std::span<const comm::SendMessage> sends,
                std::span<const comm::RecvMessage> receives,
                const comm::Operation&) override {
    for (const comm::RecvMessage& receive : receives)
      for (const comm::SendMessage& send : sends)
        if (send.peer == receive.peer)
          std::memcpy(receive.data, send.data,
                      std::min(receive.bytes, send.bytes));
  }
  [[nodiscard]] std::unique_ptr<comm::Transport> split(
      int, int, const comm::Operation&) override {
    throw Error(ErrorCode::kUnavailable, "an echo has no groups to split");
  }
  void give_up(std::string_view) noexcept override {}

 private:
  int size_;
};

}  // namespace thinwire::apps::bench
