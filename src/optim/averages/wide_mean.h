// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/core/buffer.h"
#include "thinwire/core/memory.h"
#include "thinwire/core/view.h"

namespace thinwire::optim {

/// The memory of averages in fp32, of gradients that they cannot replace.
class WideMean {
 public:
  /// Returns the place of the average: fp32 gradients, or memory of its own.
  [[nodiscard]] View place_of(View grads) {
    return grads.dtype() == DType::kFloat32 ? grads : apart_from(grads);
  }
  /// Returns fp32 memory for as many elements.
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
