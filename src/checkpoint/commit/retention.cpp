// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/retention.h"

#include "checkpoint/commit/root_directory.h"

namespace thinwire::checkpoint {

std::vector<std::string> superfluous(const std::vector<FoundCheckpoint>& found,
                                     const std::string& run,
                                     const Retention& which,
                                     const LoadedFrom& loaded_from) {
  std::vector<std::string> names;
  if (which.keep_last == 0) return names;
  std::int64_t newer = 0;
  std::int64_t since_then = 0;  // saved after the load
  bool has_finite = false;      // among those before in `found`
  for (const FoundCheckpoint& one : found) {
    const std::int64_t step = one.manifest.step;
    // Copies that somebody made beside them are theirs.
    if (!one.complete || one.manifest.run != run || one.name != step_name(step))
      continue;
    const bool is_last = newer < which.keep_last;
    const bool is_kept = which.keep_every > 0 && step % which.keep_every == 0;
    const bool is_needed = one.name == loaded_from.name && since_then < 2;
    const bool is_newest_finite = one.manifest.finite && !has_finite;
    has_finite = has_finite || one.manifest.finite;
    if (!is_last && !is_kept && !is_needed && !is_newest_finite)
      names.push_back(one.name);
    ++newer;
    if (one.manifest.save_index > loaded_from.newest_index) ++since_then;
  }
  return names;
}

}  // namespace thinwire::checkpoint
