// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "optim/low_bit/model.h"

namespace thinwire::optim {

/// Groups that are never compressed (non_freeze): in a compressed step their
/// gradients travel exactly, while the others are encoded.
class ExactGroups {
 public:
  explicit ExactGroups(LowBitModel& model) : model_(model) {}

  /// Collective, queued.
  void begin(View grads);
  /// Waits, and takes Adam's step `number` with what has arrived; `grad_scale`
  /// is what each rank's gradient is to be multiplied by.
  void finish(std::int64_t number, const StepInput& in, double grad_scale,
              StepMeter& step);

 private:
  LowBitModel& model_;
  std::vector<comm::Work> queued_;
};

}  // namespace thinwire::optim
