// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/options.h"

#include <fmt/format.h>

#include <iterator>

#include "core/require.h"
#include "thinwire/core/checksum.h"

namespace thinwire::optim {

void LowBitSettings::validate(const ParameterLayout& layout) const {
  adam.validate(layout.num_groups());
  require(!exchange.during_backward || name == "onebit_adam",
          "exchange.during_backward", "false with " + name,
          exchange.during_backward);

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
