// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "thinwire/core/view.h"

namespace thinwire::zero {

/// Copies between the memory that computes and the memory that holds what is
/// offloaded, one after the other, while the caller goes on. What differs from
/// device to device is behind this interface.
class CopyEngine {
 public:
  /// Which copy, counted from 1; 0: none.
  using Ticket = std::uint64_t;

  virtual ~CopyEngine() = default;

  /// Queued: `from` to `to`, of the same size and dtype, which do not overlap.
  /// Both stay alive, `from` unchanged and `to` untouched, until the ticket has
  /// been waited for.
  virtual Ticket queue(ConstView from, View to) = 0;
  /// Returns when this copy and all before it are done.
  virtual void wait(Ticket ticket) = 0;
};

/// Host memory to host memory, on a thread of its own.
[[nodiscard]] std::unique_ptr<CopyEngine> make_host_copy_engine();

}  // namespace thinwire::zero
