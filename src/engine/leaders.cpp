// SPDX-License-Identifier: Apache-2.0
#include "thinwire/engine/leaders.h"

namespace thinwire::engine {

config::Config config_of_leaders(const config::Config& config, int world,
                                 int ranks_per_host) {
  const config::BatchSizes sizes = config.batch(world);
  config::Config leaders = config;
  leaders.comm.hierarchy = config::Hierarchy::kFlat;
  leaders.comm.ranks_per_host = 0;
  leaders.train_batch_size.reset();
  leaders.train_micro_batch_size_per_gpu.reset();
  if (sizes.micro > 0) leaders.train_micro_batch_size_per_gpu = sizes.micro;
  leaders.gradient_accumulation_steps =
      sizes.accumulation_steps * ranks_per_host;
  return leaders;
}

}  // namespace thinwire::engine
