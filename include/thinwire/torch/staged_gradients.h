// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "thinwire/core/error.h"
#include "thinwire/core/memory.h"
#include "thinwire/engine/engine.h"
#include "thinwire/torch/module_memory.h"
#include "thinwire/torch/staging.h"

namespace thinwire::torch {

/// Copies gradients of a module on a device to the host, each one as soon as
/// backward has made it. Meanwhile gradients that have arrived go to the
/// engine, in that order, while backward makes others.
class StagedGradients {
 public:
  /// Bytes of gradients that may be on their way if the engine has no array of
  /// them.
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;

  StagedGradients(ModuleMemory& memory, engine::Engine& core)
      : memory_(memory),
        core_(core),
        releases_(memory.grads().empty()),
        // If the engine would add up in the parameters' dtype, the device does
        // so with the same bits. Gradients of 16 bits that add up in fp32 are
        // copied in each backward.
        adds_up_(!releases_ &&
                 (core.config().precision.dtype == DType::kFloat32 ||
                  core.config().accumulation_dtype != DType::kFloat32)),
        keeps_(adds_up_ && !core.config().managed_gradient_accumulation),
        added_up_(memory.tensors().size()) {}

  /// Throws Error(kFailedPrecondition) naming a gradient that was removed or
  /// replaced in a window of accumulation.
  void check() {
    if (releases_) return;
    if (!in_window_) return memory_.zero_grad();
    for (std::size_t k = 0; k < added_up_.size(); ++k)
      if (address_of(k) != added_up_[k])
        throw Error(ErrorCode::kFailedPrecondition,
                    "gradient of '" + name_of(k) +
                        "' is gone or was replaced inside of a window of "
                        "accumulation: zero_grad() of a module or of a torch "
                        "optimizer does that. An engine's step() sets "
                        "gradients to 0: remove that call");
  }

  /// Begins a backward, after the engine's begin_backward().
  void begin() {
    is_boundary_ = core_.is_boundary();
    taken_.assign(memory_.tensors().size(), false);
  }

  /// Takes the gradient of a parameter, which is complete for this backward.
  void take(std::size_t index, at::Tensor parameter) {
    if (taken_[index])
      throw Error(ErrorCode::kFailedPrecondition,
                  "gradient of '" + name_of(index) +
                      "': there were two in one backward, as with reentrant "
                      "checkpointing of a module that is used twice");
    taken_[index] = true;
    if (adds_up_ && !is_boundary_) return core_.gradient_ready(index);
    const at::Tensor gradient = parameter.grad();
    if (!gradient.defined() || gradient.numel() == 0) return;
    if (!keeps_) parameter.mutable_grad().reset();
    copy(index, gradient.detach());
    hand_over(false);
  }

  /// Ends the backward, before the engine's end_backward().
  void finish() {
    if (adds_up_ && is_boundary_) {
      // From earlier backwards of the window: the last one had none.
      for (std::size_t k = 0; k < memory_.tensors().size(); ++k) {
        const at::Tensor gradient = memory_.tensors()[k].grad();
        if (!gradient.defined() || gradient.numel() == 0) continue;
        if (!keeps_) memory_.tensors()[k].mutable_grad().reset();
        memory_.staging()->to_host(gradient.detach(), memory_.gradient(k));
      }
    }
    if (is_boundary_ || !pending_.empty()) memory_.staging()->wait();
    hand_over(true);
    in_window_ = keeps_ || !is_boundary_;
    for (std::size_t k = 0; k < added_up_.size(); ++k)
      added_up_[k] = address_of(k);
  }

  /// Begins a window, after the engine's step().
  void begin_window() { in_window_ = false; }

  /// Ends a backward that has failed.
  void cancel() {
    memory_.staging()->wait();
    pending_.clear();
    pending_bytes_ = 0;
    in_window_ = false;
    for (const at::Tensor& tensor : memory_.tensors())
      tensor.mutable_grad().reset();
  }

 private:
  struct Pending {
    std::size_t index;
    at::Tensor view;
    std::optional<c10::Event> event;
  };

  [[nodiscard]] const std::string& name_of(std::size_t k) const {
    return memory_.layout().parameters()[k].name;
  }
  [[nodiscard]] const void* address_of(std::size_t k) const {
    const at::Tensor& gradient = memory_.tensors()[k].grad();
    return gradient.defined() ? gradient.const_data_ptr() : nullptr;
  }

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

  void hand_over(bool all_have_arrived) {
    while (!pending_.empty()) {
      Pending& first = pending_.front();
      if (!all_have_arrived && first.event && !first.event->query()) return;
      if (releases_) {
        const auto bytes = first.view.nbytes();
        const MemoryNote note(MemoryKind::kGradients, bytes);
        core_.gradient_ready(
            first.index, ConstView(first.view.const_data_ptr(),
                                   static_cast<std::size_t>(first.view.numel()),
                                   first.view.scalar_type() == at::kFloat
                                       ? DType::kFloat32
                                       : core_.config().precision.dtype));
        pending_bytes_ -= bytes;
      } else {
        core_.gradient_ready(first.index);
      }
      pending_.pop_front();
    }
  }

  ModuleMemory& memory_;
  engine::Engine& core_;
  bool releases_;
  bool adds_up_;
  // Gradients on the device until the step: the program ends windows, so any
  // backward may be the last one, or not.
  bool keeps_;
  bool is_boundary_ = true;
  bool in_window_ = false;
  std::vector<bool> taken_;
  std::vector<const void*> added_up_;  // gradients of earlier backwards
  std::deque<Pending> pending_;
  std::size_t pending_bytes_ = 0;
};

}  // namespace thinwire::torch
