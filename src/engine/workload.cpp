// SPDX-License-Identifier: Apache-2.0
#include "thinwire/engine/workload.h"

namespace thinwire::engine {

Workload workload_of(const config::Config& config, int ranks, Workload work) {
  config.validate(ranks);
  work.dtype = config.precision.dtype;
  work.earlier_seconds =
      static_cast<double>(config.batch(ranks).accumulation_steps - 1) *
      (work.forward_seconds + work.backward_seconds);
  work.bucket_elements = static_cast<double>(config.comm.bucket_elements);
  work.zero_bucket_bound = static_cast<double>(config.zero.reduce_bucket_size);
  work.compressed_during_backward = config.comm.compressed_during_backward;
  if (const auto* zero_one =
          std::get_if<optim::ZeroOneAdamOptions>(&config.optimizer)) {
    work.steps_per_sync = static_cast<double>(zero_one->local_step_clipper);
    work.residual_dtype = zero_one->residual_dtype;
  }
  if (const auto* onebit =
          std::get_if<optim::OnebitAdamOptions>(&config.optimizer))
    work.residual_dtype = onebit->residual_dtype;
  return work;
}

}  // namespace thinwire::engine
