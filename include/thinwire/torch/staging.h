// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "thinwire/core/log.h"

namespace thinwire::torch {

/// Copies between tensors of a device and arrays on the host, on a separate
/// stream. It uses only functions that c10 has for every device. If the device
/// has no streams or no pinned memory, it waits for every copy, and logs a
/// warning once.
class Staging {
 public:
  explicit Staging(at::Device device) : device_(device), guard_(device.type()) {
    try {
      stream_ = guard_.getNewStream(device);
      static_cast<void>(zeros({1}, at::kFloat));
    } catch (const c10::Error& error) {
      do_without(std::string("it has no streams (") +
                 error.what_without_backtrace() + ")");
    }
  }

  [[nodiscard]] at::Device device() const noexcept { return device_; }
  /// Returns another stream; nothing if the device has none.
  [[nodiscard]] std::optional<c10::Stream> new_stream() const {
    if (!stream_) return std::nullopt;
    return guard_.getNewStream(device_);
  }
  /// Returns the stream on which the program queues operations.
  [[nodiscard]] c10::Stream current() const {
    return guard_.getStream(device_);
  }
  /// Returns the event after all operations of a stream so far.
  [[nodiscard]] c10::Event recorded(const c10::Stream& stream) const {
    c10::Event event(device_.type());
    event.record(stream);
    return event;
  }

  /// Returns an array that the device can copy to and from while the host
  /// computes.
  [[nodiscard]] at::Tensor zeros(at::IntArrayRef sizes, at::ScalarType type) {
    const auto options = at::TensorOptions().dtype(type);
    if (stream_) try {
        at::Tensor made = at::zeros(sizes, options.pinned_memory(true));
        if (made.numel() == 0 || (made.device().is_cpu() && made.is_pinned()))
          return made;
        do_without("torch pins no memory for it");
      } catch (const c10::Error& error) {
        do_without(std::string("pinned memory was refused (") +
                   error.what_without_backtrace() + ")");
      }
    return at::zeros(sizes, options);
  }

  /// Copies `tensor` to `view`, an array from zeros() or a part of one. Returns
  /// the event after which the copy is complete, or nothing if it is complete
  /// now. The tensor may be released at once.
  std::optional<c10::Event> to_host(at::Tensor tensor, const at::Tensor& view) {
    if (!stream_) {
      view.copy_(tensor);
      return std::nullopt;
    }
    // Copies to the host are asynchronous only between contiguous tensors of
    // one dtype.
    tensor = tensor.to(view.scalar_type()).contiguous();
    // Looked up in every call: a hook runs on the stream of its gradient.
    stream_->wait(recorded(current()));
    {
      const c10::StreamGuard on(*stream_);
      view.copy_(tensor, /*non_blocking=*/true);
    }
    tensor.record_stream(*stream_);
    is_quiet_ = false;
    return recorded(*stream_);
  }

  /// Queues copies. Operations that are queued later see the new values, and
  /// those that were queued before see the old ones.
  void to_device(const std::vector<at::Tensor>& views,
                 const std::vector<at::Tensor>& tensors) {
    if (!stream_) {
      copy(views, tensors);
      return;
    }
    stream_->wait(recorded(current()));
    {
      const c10::StreamGuard on(*stream_);
      copy(views, tensors);
    }
    current().wait(recorded(*stream_));
    is_quiet_ = false;
  }

  /// Blocks until all copies are done. The host may then read and write the
  /// arrays.
  void wait() {
    if (stream_ && !is_quiet_) guard_.synchronizeStream(*stream_);
    is_quiet_ = true;
  }

 private:
  static void copy(const std::vector<at::Tensor>& views,
                   const std::vector<at::Tensor>& tensors) {
    for (std::size_t k = 0; k < views.size(); ++k)
      tensors[k].detach().copy_(views[k], /*non_blocking=*/true);
  }
  void do_without(const std::string& why) {
    static std::atomic<bool> was_told = false;
    wait();  // for copies in flight
    stream_.reset();
    if (!was_told.exchange(true))
      log(LogLevel::kWarning, "copies from and to " + device_.str() +
                                  " are synchronous, and so slower: " + why);
  }

  at::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  std::optional<c10::Stream> stream_;
  bool is_quiet_ = true;
};

}  // namespace thinwire::torch
