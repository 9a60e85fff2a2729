// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "thinwire/core/view.h"

namespace thinwire::zero {

/// Copies between the memory that computes and the memory that holds offloaded
/// data, one after the other, while the caller continues. The interface hides
/// the differences between devices.
class CopyEngine {
 public:
  /// Number of a copy, counted from 1; 0 for none.
  using Ticket = std::uint64_t;

  virtual ~CopyEngine() = default;

  /// Queues a copy of `from` to `to`, which have the same size and dtype and do
  /// not overlap. Both must stay alive, `from` unchanged and `to` untouched,
  /// until wait() has returned for the ticket.
  virtual Ticket queue(ConstView from, View to) = 0;
  /// Returns when this copy and all before it are done.
  virtual void wait(Ticket ticket) = 0;
};

/// Makes an engine that copies from host memory to host memory on a thread of
/// its own.
[[nodiscard]] std::unique_ptr<CopyEngine> make_host_copy_engine();

}  // namespace thinwire::zero
