// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/parameter_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <ranges>
#include <set>
#include <unordered_set>

#include "core/edit_distance.h"
#include "core/require.h"
#include "thinwire/core/checksum.h"

namespace thinwire {

namespace {

std::size_t element_count(const ParameterSpec& spec, std::size_t before) {
  std::size_t count = 1;
  for (const std::size_t extent : spec.shape) {
    if (extent != 0 && count > std::numeric_limits<std::size_t>::max() / extent)
      reject(fmt::format("parameter '{}': shape {} has too many elements",
                         spec.name, fmt::join(spec.shape, "x")));
    count *= extent;
  }
  if (count > std::numeric_limits<std::size_t>::max() - before)
    reject(fmt::format("parameter '{}': the layout has too many elements",
                       spec.name));
  return count;
}

}  // namespace

ParameterLayout ParameterLayout::of(std::vector<ParameterSpec> specs,
                                    std::size_t num_groups) {
  ParameterLayout layout;
  layout.parameters_.reserve(specs.size());
  std::unordered_set<std::string> names;
  std::set<std::size_t> groups;
  for (ParameterSpec& spec : specs) {
    if (spec.name.empty() || spec.name.find('\n') != std::string::npos)
      reject(
          fmt::format("parameter name must be one line and not empty, "
                      "got '{}'",
                      spec.name));
    if (!names.insert(spec.name).second)
      reject(fmt::format("parameter name '{}' is used twice", spec.name));
    if (num_groups > 0 && spec.group >= num_groups)
      reject(fmt::format("parameter '{}': group must be below {}, got {}",
                         spec.name, num_groups, spec.group));
    groups.insert(spec.group);
    const std::size_t count = element_count(spec, layout.size_);
    layout.parameters_.push_back({std::move(spec.name), std::move(spec.shape),
                                  spec.group, layout.size_, count});
    layout.size_ += count;
  }
  layout.num_groups_ = num_groups;
  if (num_groups > 0) return layout;
  layout.num_groups_ = groups.empty() ? 0 : *groups.rbegin() + 1;
  if (groups.size() != layout.num_groups_)
    reject(
        fmt::format("parameter groups must be numbered from 0 without "
                    "gaps, got {{{}}}",
                    fmt::join(groups, ", ")));
  return layout;
}

const Parameter& ParameterLayout::parameter(std::string_view name) const {
  for (const Parameter& candidate : parameters_)
    if (candidate.name == name) return candidate;
  if (parameters_.empty())
    reject(fmt::format("no parameter '{}': the layout is empty", name));
  const std::string_view nearest =
      nearest_name(name, parameters_ | std::views::transform(&Parameter::name));
  reject(fmt::format("no parameter '{}'{}", name,
                     nearest.empty()
                         ? ""
                         : fmt::format("; the nearest name is '{}'", nearest)));
}

const Parameter& ParameterLayout::parameter_at(std::size_t index) const {
  if (index >= size_)
    reject(fmt::format("index must be below {}, got {}", size_, index));
  // Finds the first parameter that ends after the index. The result is never an
  // empty parameter.
  return *std::partition_point(
      parameters_.begin(), parameters_.end(),
      [&](const Parameter& p) { return p.offset + p.size <= index; });
}

std::string ParameterLayout::describe() const {
  std::string text;
  for (const Parameter& p : parameters_)
    fmt::format_to(
        std::back_inserter(text), "{} {} group {}\n", p.name,
        p.shape.empty() ? "scalar" : fmt::format("{}", fmt::join(p.shape, "x")),
        p.group);
  return text;
}

std::uint64_t ParameterLayout::hash() const { return checksum(describe()); }

}  // namespace thinwire
