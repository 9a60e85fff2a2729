// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/memory.h"

#include <fmt/format.h>

#include "apps/train_gpt/report/units.h"

namespace thinwire::train_gpt {

MemoryOfRank memory_of_rank(const MemoryUse::Bytes& bytes) {
  const auto of = [&bytes](MemoryKind kind) {
    return bytes[static_cast<std::size_t>(kind)];
  };
  MemoryOfRank memory{.parameters = of(MemoryKind::kParameters),
                      .gradients = of(MemoryKind::kGradients),
                      .states = of(MemoryKind::kStates),
                      .buckets = of(MemoryKind::kBuckets),
                      .other = of(MemoryKind::kOther)};
  memory.peak = memory.parameters + memory.gradients + memory.states +
                memory.buckets + memory.other;
  return memory;
}

std::string describe(const MemoryOfRank& memory) {
  const auto size = [](std::uint64_t bytes) {
    return format_bytes(static_cast<double>(bytes));
  };
  return fmt::format(
      "memory per rank: {} (parameters {}, gradients {}, optimizer states {}, "
      "buckets {})\n",
      size(memory.peak), size(memory.parameters), size(memory.gradients),
      size(memory.states), size(memory.buckets));
}

}  // namespace thinwire::train_gpt
