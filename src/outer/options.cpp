// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>

#include "core/require.h"
#include "exchange/codec/codec.h"
#include "thinwire/outer/outer_options.h"

namespace thinwire::outer {

void OuterOptions::validate() const {
  require(sync_every >= 1, "outer.sync_every", ">= 1", sync_every);
  require(sync_growth >= 0, "outer.sync_growth", ">= 0", sync_growth);
  require(std::isfinite(learning_rate) && learning_rate > 0,
          "outer.learning_rate", "finite and > 0", learning_rate);
  require(momentum >= 0 && momentum < 1, "outer.momentum", "in [0, 1)",
          momentum);
  exchange::require_bits_or_exact("outer.bits_up", bits_up);
  exchange::require_bits_or_exact("outer.bits_down", bits_down);
  require(warmup_steps >= 0, "outer.warmup_steps", ">= 0", warmup_steps);
  exchange::require_bits_or_exact("outer.warmup_bits", warmup_bits);
}

std::string OuterOptions::describe() const {
  return fmt::format(
      "outer sync_every={} sync_growth={} learning_rate={} momentum={} "
      "bits_up={} bits_down={} warmup_steps={} warmup_bits={}\n",
      sync_every, sync_growth, learning_rate, momentum, bits_up, bits_down,
      warmup_steps, warmup_bits);
}

}  // namespace thinwire::outer
