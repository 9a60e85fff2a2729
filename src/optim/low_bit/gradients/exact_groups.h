// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "optim/low_bit/model.h"

namespace thinwire::optim {

/// Groups that are never compressed (non_freeze). In a compressed step their
/// gradients travel exactly, while the others are encoded.
class ExactGroups {
 public:
  explicit ExactGroups(LowBitModel& model) : model_(model) {}

  /// Sends the gradients. Collective, queued.
  void begin(View grads);
  /// Waits for the sums and takes Adam's step `number` with them. Each rank's
  /// gradients are multiplied by `grad_scale`.
  void finish(std::int64_t number, const StepInput& in, double grad_scale,
              StepMeter& step);

 private:
  LowBitModel& model_;
  std::vector<comm::Work> queued_;
};

}  // namespace thinwire::optim
