// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/model.h"

#include <fmt/format.h>

#include "optim/saved_state.h"
#include "thinwire/core/log.h"

namespace thinwire::optim {

void LowBitModel::for_blocks(const std::function<void(std::size_t)>& body,
                             const FinalRange& tell) {
  if (!tell) return for_blocks(body);
  for (const exchange::Bucket& bucket : layout.blocks.buckets()) {
    const std::size_t first = bucket.first_block();
    const Range blocks{first, bucket.end_block() - first};
    pool.for_each(blocks.size, [&](std::size_t i) { body(first + i); });
    tell_blocks(blocks, tell);
  }
}

void LowBitModel::tell_blocks(Range blocks, const FinalRange& tell) const {
  for (std::size_t b = blocks.offset; b < blocks.end();) {
    Range joined = block(b++);
    for (; b < blocks.end() && block(b).offset == joined.end(); ++b)
      joined.size += block(b).size;
    tell(joined);
  }
}

std::function<void(Range)> LowBitModel::teller(const FinalRange& tell) const {
  if (!tell) return {};
  return [this, &tell](Range blocks) { tell_blocks(blocks, tell); };
}

void note_other_hosts(const StateDict& state, const LowBitModel& model) {
  const std::int64_t saved = saved_ranks_per_host(state);
  const int now = model.comm.hosts().ranks_per_host;
  if (saved == now || model.comm.rank() != 0) return;
  log(LogLevel::kInfo,
      fmt::format("{}: the state is of {} ranks per host, this run has {}: "
                  "residuals are the mean of what hosts had",
                  model.settings.name, saved, now));
}

}  // namespace thinwire::optim
