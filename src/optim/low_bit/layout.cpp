// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/layout.h"

#include <utility>

namespace thinwire::optim {

LowBitLayout::LowBitLayout(const ParameterLayout& layout,
                           std::span<const LowBitGroup> groups,
                           const exchange::BlockOptions& block_options,
                           std::optional<exchange::BlockLayout> given)
    : all(group_ranges(layout)) {
  const auto stays_exact = [&](std::size_t group) {
    return !groups.empty() && groups[group].stays_exact;
  };
  for (const GroupRange& r : all)
    if (stays_exact(r.group))
      exact.push_back(r.range);
    else
      compressed.push_back(r);
  for (const Parameter& p : layout.parameters())
    if (!stays_exact(p.group)) units.push_back({p.offset, p.size});
  blocks =
      given ? *std::move(given) : exchange::BlockLayout(units, block_options);
  for (const exchange::Block& block : blocks.blocks()) {
    const Parameter& parameter = layout.parameter_at(block.values.offset);
    block_group.push_back(parameter.group);
    block_parameter.push_back(
        static_cast<std::size_t>(&parameter - layout.parameters().data()));
  }
}

}  // namespace thinwire::optim
