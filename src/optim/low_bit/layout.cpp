// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/require.h"
#include "thinwire/core/checksum.h"

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

namespace {

// Writes a group's values to its elements of a mask, which is not empty.
void write(const ParameterLayout& layout, std::size_t group,
           std::span<const float> mask, std::vector<float>& all) {
  std::size_t used = 0;
  for (const Parameter& p : layout.parameters()) {
    if (p.group != group) continue;
    const auto to = all.begin() + static_cast<std::ptrdiff_t>(p.offset);
    if (mask.empty())
      std::fill_n(to, p.size, 1.0f);
    else
      std::ranges::copy(mask.subspan(used, p.size), to);
    used += p.size;
  }
}

std::uint32_t fingerprint_of(const std::vector<float>& mask) {
  return mask.empty()
             ? 0
             : static_cast<std::uint32_t>(checksum(mask)) & Masks::kBits;
}

void forget_ones(std::vector<float>& mask) {
  if (std::ranges::all_of(mask, [](float value) { return value == 1; }))
    mask.clear();
}

}  // namespace

Masks::Masks(const ParameterLayout& layout,
             std::span<const LowBitGroup> groups) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].exp_avg_mask.empty()) continue;
    if (values_.empty()) values_.assign(layout.size(), 1.0f);
    write(layout, g, groups[g].exp_avg_mask, values_);
  }
  forget_ones(values_);
  fingerprint_ = fingerprint_of(values_);
}

void Masks::set(const ParameterLayout& layout, std::size_t group,
                std::span<const float> mask) {
  require(group < layout.num_groups(), "group",
          fmt::format("in [0, {})", layout.num_groups()), group);
  std::size_t size = 0;
  for (const Parameter& p : layout.parameters())
    if (p.group == group) size += p.size;
  require(mask.empty() || mask.size() == size, "exp_avg_mask",
          fmt::format("empty or {} values, of group {}", size, group),
          fmt::format("{} values", mask.size()));
  std::vector<float> next = next_ ? *next_ : values_;
  if (next.empty()) next.assign(layout.size(), 1.0f);
  write(layout, group, mask, next);
  forget_ones(next);
  fingerprint_ = fingerprint_of(next);
  next_ = std::move(next);
}

void Masks::follow() {
  if (!next_) return;
  values_ = *std::exchange(next_, std::nullopt);
}

void note_change(const MaskChange& change, std::vector<std::string>& notes) {
  if (!change.excluded.empty())
    notes.push_back(fmt::format(
        "exp_avg_mask leaves out {} elements that took part in the state",
        change.excluded.size()));
  if (!change.included.empty())
    notes.push_back(fmt::format(
        "exp_avg_mask has 1 for {} elements that the state leaves out: they "
        "take part from their next gradient on",
        change.included.size()));
}

}  // namespace thinwire::optim
