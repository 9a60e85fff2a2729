// SPDX-License-Identifier: Apache-2.0
#include "thinwire/engine/leaders.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <vector>

#include "core/require.h"
#include "thinwire/core/error.h"
#include "thinwire/core/view.h"

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

double mean(comm::Communicator& comm, std::int64_t steps, double value) {
  // The size and the tag distinguish this exchange from others.
  constexpr double kTag = 0x6d65616e;
  const std::array<double, 3> own{kTag, static_cast<double>(steps), value};
  const auto ranks = static_cast<std::size_t>(comm.size());
  std::vector<double> all(own.size() * ranks);
  comm.all_gather(ConstView(own.data(), own.size(), DType::kFloat64),
                  View(all.data(), all.size(), DType::kFloat64));
  double sum = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    const double* const its = all.data() + own.size() * r;
    if (its[0] != kTag)
      throw Error(ErrorCode::kCommFailure,
                  fmt::format("mean: rank {} is in another call", r));
    if (its[1] != all[1])
      refuse(fmt::format(
          "mean: ranks have made different numbers of steps: {} on rank 0, {} "
          "on rank {}: if their numbers of batches differ, drop the last ones "
          "(drop_last), or pad with a sampler",
          all[1], its[1], r));
    sum += its[2];
  }
  return sum / static_cast<double>(ranks);
}

}  // namespace thinwire::engine
