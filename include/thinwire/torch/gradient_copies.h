// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "thinwire/core/error.h"
#include "thinwire/core/memory.h"
#include "thinwire/engine/engine.h"
#include "thinwire/torch/module_memory.h"
#include "thinwire/torch/staging.h"

namespace thinwire::torch {

/// Copies of gradients from a device to the host. The engine gets them in the
/// order of their arrival, while backward computes others.
class GradientCopies {
 public:
  /// Largest number of bytes in flight if the engine has no array of gradients.
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;

  GradientCopies(ModuleMemory& memory, engine::Engine& core)
      : memory_(memory), core_(core), releases_(memory.grads().empty()) {}

  [[nodiscard]] bool empty() const noexcept { return pending_.empty(); }

  /// Queues a copy. The gradient may be released at once.
  void copy(std::size_t index, const at::Tensor& gradient) {
    at::Tensor view;
    if (releases_) {
      while (!pending_.empty() &&
             pending_bytes_ + gradient.nbytes() > kMostBytes) {
        if (pending_.front().event) pending_.front().event->synchronize();
        hand_over(false);
      }
      const MemoryScope scope(MemoryKind::kGradients);
      view = memory_.staging()->zeros(gradient.sizes(), gradient.scalar_type());
      pending_bytes_ += view.nbytes();
    } else {
      view = memory_.gradient(index);
    }
    auto event = memory_.staging()->to_host(gradient, view);
    pending_.push_back({index, std::move(view), std::move(event)});
  }

  /// Passes the gradients that have arrived to the engine.
  void hand_over(bool all_have_arrived) {
    while (!pending_.empty()) {
      Pending& first = pending_.front();
      if (!all_have_arrived && first.event && !first.event->query()) return;
      if (releases_) {
        const auto bytes = first.view.nbytes();
        const MemoryNote note(MemoryKind::kGradients, bytes);
        core_.gradient_ready(first.index, ModuleMemory::view(first.view));
        pending_bytes_ -= bytes;
      } else {
        core_.gradient_ready(first.index);
      }
      pending_.pop_front();
    }
  }

  /// Waits for all copies, and forgets them.
  void cancel() {
    memory_.staging()->wait();
    pending_.clear();
    pending_bytes_ = 0;
  }

 private:
  struct Pending {
    std::size_t index;
    at::Tensor view;
    std::optional<c10::Event> event;
  };

  ModuleMemory& memory_;
  engine::Engine& core_;
  bool releases_;
  std::deque<Pending> pending_;
  std::size_t pending_bytes_ = 0;
};

/// Gradients that stay on a device between the backwards of a window.
class AddedUp {
 public:
  explicit AddedUp(ModuleMemory& memory)
      : memory_(memory), addresses_(memory.tensors().size()) {}

  /// Notes the gradients of this window; the next backward adds to them.
  void remember() {
    for (std::size_t k = 0; k < addresses_.size(); ++k)
      addresses_[k] = address_of(k);
  }
  /// Throws Error(kFailedPrecondition) naming a gradient that was removed or
  /// replaced since then.
  void check() const {
    for (std::size_t k = 0; k < addresses_.size(); ++k)
      if (address_of(k) != addresses_[k])
        throw Error(ErrorCode::kFailedPrecondition,
                    "gradient of '" + memory_.layout().parameters()[k].name +
                        "' is gone or was replaced inside of a window of "
                        "accumulation: zero_grad() of a module or of a torch "
                        "optimizer does that. An engine's step() sets "
                        "gradients to 0: remove that call");
  }

 private:
  [[nodiscard]] const void* address_of(std::size_t k) const {
    const at::Tensor& gradient = memory_.tensors()[k].grad();
    return gradient.defined() ? gradient.const_data_ptr() : nullptr;
  }

  ModuleMemory& memory_;
  std::vector<const void*> addresses_;
};

/// The parameters of one backward, each of which has one gradient.
class TakenOnce {
 public:
  explicit TakenOnce(const ModuleMemory& memory) : memory_(memory) {}

  void begin() { taken_.assign(memory_.tensors().size(), false); }
  /// Throws Error(kFailedPrecondition) naming a parameter's second gradient.
  void take(std::size_t index) {
    if (taken_[index])
      throw Error(ErrorCode::kFailedPrecondition,
                  "gradient of '" + memory_.layout().parameters()[index].name +
                      "': there were two in one backward, as with reentrant "
                      "checkpointing of a module that is used twice");
    taken_[index] = true;
  }

 private:
  const ModuleMemory& memory_;
  std::vector<bool> taken_;
};

}  // namespace thinwire::torch
