// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/average_options.h"

#include <fmt/format.h>

#include "core/require.h"
#include "exchange/codec/codec.h"

namespace thinwire::optim {

void AverageOptions::validate() const {
  exchange::require_bits_or_exact("bits", bits);
  require(low_rank >= 0 && low_rank <= 64, "low_rank", "in [0, 64]", low_rank);
  require(bits == 0 || low_rank == 0, "bits",
          fmt::format("0 with low_rank = {}", low_rank), bits);
  require(first_steps.value_or(0) >= 0, "first_steps", ">= 0",
          first_steps.value_or(0));
  exchange::require_bits("first_bits", first_bits);
  require(low_rank != 0 || !first_steps, "first_steps",
          "left out without low_rank", first_steps.value_or(0));
  require(low_rank != 0 || first_bits == AverageOptions().first_bits,
          "first_bits", "left out without low_rank", first_bits);
  require(total_steps.value_or(1) >= 1, "total_steps", ">= 1",
          total_steps.value_or(1));
}

std::string AverageOptions::describe() const {
  if (bits != 0) return fmt::format("bits={}\n", bits);
  if (low_rank == 0) return "";
  return fmt::format("low_rank={} first_steps={} first_bits={}\n", low_rank,
                     first_steps_of(*this), first_bits);
}

}  // namespace thinwire::optim
