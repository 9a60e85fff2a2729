// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/core/buffer.h"
#include "thinwire/core/memory.h"
#include "thinwire/core/view.h"

namespace thinwire::optim {

/// Memory for averages in fp32 that cannot replace their 16-bit gradients.
class WideMean {
 public:
  /// Returns the destination of the average: fp32 gradients themselves, or
  /// separate memory.
  [[nodiscard]] View place_of(View grads) {
    return grads.dtype() == DType::kFloat32 ? grads : apart_from(grads);
  }
  /// Returns separate fp32 memory of the same size.
  [[nodiscard]] View apart_from(View grads) {
    if (mean_.size() != grads.size()) {
      const MemoryScope scope(MemoryKind::kGradients);
      mean_ = Buffer::of<float>(grads.size());
    }
    return mean_.view();
  }
  void release() { mean_ = Buffer(); }

 private:
  Buffer mean_;
};

}  // namespace thinwire::optim
