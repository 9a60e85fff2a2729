// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/gradients/exact_groups.h"

namespace thinwire::optim {

void ExactGroups::begin(View grads) {
  if (model_.observer != nullptr)
    for (const GroupRange& r : model_.layout.exact)
      model_.observer->exact(r.range,
                             grads.subview(r.range.offset, r.range.size));
  queued_ = queue_sums(model_.comm, grads, model_.layout.exact,
                       model_.settings.exchange.bucket_elements);
}

void ExactGroups::finish(std::int64_t number, const StepInput& in,
                         double grad_scale, StepMeter& step) {
  step.wait_for(queued_);
  queued_.clear();
  const double divisor = sum_divisor(model_.comm, in.grads.dtype());
  const UpdateArrays arrays =
      update_arrays(in, static_cast<float>(grad_scale / divisor));
  for (const GroupRange& r : model_.layout.exact) {
    model_.adam.apply_part(number, r.range, part_of(arrays, r.range),
                           model_.pool);
    if (in.final_range) in.final_range(r.range);
  }
}

}  // namespace thinwire::optim
