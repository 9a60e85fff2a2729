// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstddef>

#include "thinwire/engine/engine.h"
#include "thinwire/torch/gradient_copies.h"
#include "thinwire/torch/module_memory.h"
#include "thinwire/torch/staging.h"

namespace thinwire::torch {

/// Copies gradients of a module on a device to the host and passes them to the
/// engine. Each is copied as soon as backward has computed it.
class StagedGradients {
 public:
  StagedGradients(ModuleMemory& memory, engine::Engine& core)
      : memory_(memory),
        core_(core),
        releases_(memory.grads().empty()),
        // If the engine would sum gradients in the parameters' dtype, the
        // device sums them with the same bits. 16-bit gradients that are summed
        // in fp32 are copied in each backward.
        adds_up_(!releases_ &&
                 (core.config().precision.dtype == DType::kFloat32 ||
                  core.config().accumulation_dtype != DType::kFloat32)),
        keeps_(adds_up_ && !core.config().managed_gradient_accumulation),
        copies_(memory, core),
        added_up_(memory),
        taken_(memory) {}

  /// Throws Error(kFailedPrecondition) naming a gradient that was removed or
  /// replaced in a window of accumulation.
  void check() {
    if (releases_) return;
    if (!in_window_) return memory_.zero_grad();
    added_up_.check();
  }

  /// Begins a backward, after the engine's begin_backward().
  void begin() {
    is_boundary_ = core_.is_boundary();
    taken_.begin();
  }

  /// Takes the gradient of a parameter, which is complete for this backward.
  void take(std::size_t index, at::Tensor parameter) {
    taken_.take(index);
    if (adds_up_ && !is_boundary_) return core_.gradient_ready(index);
    const at::Tensor gradient = parameter.grad();
    if (!gradient.defined() || gradient.numel() == 0) return;
    if (!keeps_) parameter.mutable_grad().reset();
    copies_.copy(index, gradient.detach());
    copies_.hand_over(false);
  }

  /// Ends the backward, before the engine's end_backward().
  void finish() {
    if (adds_up_ && is_boundary_) {
      // This gradient comes from earlier backwards of the window; the last one
      // had none.
      for (std::size_t k = 0; k < memory_.tensors().size(); ++k) {
        const at::Tensor gradient = memory_.tensors()[k].grad();
        if (!gradient.defined() || gradient.numel() == 0) continue;
        if (!keeps_) memory_.tensors()[k].mutable_grad().reset();
        memory_.staging()->to_host(gradient.detach(), memory_.gradient(k));
      }
    }
    if (is_boundary_ || !copies_.empty()) memory_.staging()->wait();
    copies_.hand_over(true);
    in_window_ = keeps_ || !is_boundary_;
    added_up_.remember();
  }

  /// Begins a window, after the engine's step().
  void begin_window() { in_window_ = false; }

  /// Ends a backward that has failed.
  void cancel() {
    copies_.cancel();
    in_window_ = false;
    for (const at::Tensor& tensor : memory_.tensors())
      tensor.mutable_grad().reset();
  }

 private:
  ModuleMemory& memory_;
  engine::Engine& core_;
  bool releases_;
  bool adds_up_;
  // Gradients stay on the device until the step, because the program ends
  // windows and any backward may be the last one.
  bool keeps_;
  bool is_boundary_ = true;
  bool in_window_ = false;
  GradientCopies copies_;
  AddedUp added_up_;
  TakenOnce taken_;
};

}  // namespace thinwire::torch
