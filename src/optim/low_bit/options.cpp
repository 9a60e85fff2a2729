// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/options.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "core/require.h"
#include "optim/checks.h"
#include "thinwire/core/checksum.h"
#include "thinwire/optim/compression_options.h"
#include "thinwire/optim/freeze_options.h"

namespace thinwire::optim {

void CompressionOptions::validate() const {
  exchange.validate();
  require(std::isfinite(denom_floor) && denom_floor >= 0, "denom_floor",
          "finite and >= 0", denom_floor);
  const DType residuals = residual_dtype.value_or(DType::kFloat32);
  require(residuals == DType::kFloat32 || residuals == DType::kBFloat16,
          "residual_dtype", "float32 or bfloat16", to_string(residuals));
}

void FreezeOptions::validate() const {
  const std::int64_t named = step.value_or(1);
  require(named >= 1 || named == kAutoFreeze, "freeze_step",
          ">= 1 or kAutoFreeze (-1)", named);
  require(lr_warmup_steps.value_or(0) >= 0, "lr_warmup_steps", ">= 0",
          lr_warmup_steps.value_or(0));
  require(total_steps.value_or(1) >= 1, "total_steps", ">= 1",
          total_steps.value_or(1));
  require(min_step >= 1, "min_freeze_step", ">= 1", min_step);
  require(max_step.value_or(1) >= 1, "max_freeze_step", ">= 1",
          max_step.value_or(1));
  require_warmup_bits(warmup_bits);
  require(ratio > 0 && ratio <= 1, "freeze_ratio", "in (0, 1]", ratio);
}

void LowBitSettings::validate(const ParameterLayout& layout) const {
  adam.validate(layout.num_groups());
  require(!exchange.under_next_step || name == "onebit_adam",
          "exchange.under_next_step", "false with " + name,
          exchange.under_next_step);

  std::vector<std::size_t> sizes(layout.num_groups());
  for (const Parameter& p : layout.parameters()) sizes[p.group] += p.size;
  for (std::size_t g = 0; g < groups.size(); ++g)
    require(groups[g].exp_avg_mask.empty() ||
                groups[g].exp_avg_mask.size() == sizes[g],
            fmt::format("groups[{}].exp_avg_mask", g),
            fmt::format("empty or {} values", sizes[g]),
            fmt::format("{} values", groups[g].exp_avg_mask.size()));
}

std::string LowBitSettings::describe() const {
  std::string text = fmt::format("{} denom_floor={} residual_dtype={} {}\n{}",
                                 name, denom_floor, to_string(residual_dtype),
                                 own_options, exchange.describe());
  for (std::size_t g = 0; g < groups.size(); ++g)
    fmt::format_to(std::back_inserter(text),
                   "group {} stays_exact={} exp_avg_mask={:016x}\n", g,
                   groups[g].stays_exact, checksum(groups[g].exp_avg_mask));
  return text;
}

}  // namespace thinwire::optim
