// SPDX-License-Identifier: Apache-2.0
// Bytes on the wire and in memory, as docs/algorithms/zero.md has them.
#include <gtest/gtest.h>

#include "support/sanitizers.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/memory.h"
#include "zero/support.h"

namespace thinwire::zero::low_bit_cost_test {
namespace {

using test::ZeroRun;

ParameterLayout large() {
  return ParameterLayout::of(
      {{"a", {400'003}}, {"b", {300, 1000}}, {"c", {7}}});
}

// What a run holds after two steps.
MemoryUse memory_of(comm::Communicator& comm, const ZeroOptions& options) {
  const MemoryUse before = memory_use();
  ZeroRun run(comm, large(), test::adam_rule(), options);
  run.start = {};
  const std::vector<float> grads(run.layout.size(), 0.25f);
  for (int t = 0; t < 2; ++t) run.step(grads);
  MemoryUse memory = memory_use();
  for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind)
    memory.now[kind] -= before.now[kind];
  return memory;
}

TEST(LowBitCost, MemoryEqualsTheTable) {
  const auto n = static_cast<double>(large().size());
  for (const int world : test::fewer_if_sanitized<int>({2, 4}, 1))
    for (const AfterSkip after : {AfterSkip::kClear, AfterSkip::kKeep})
      test::run_ranks("local", world, [&](comm::Communicator& comm) {
        const double bucket = 1 << 16;
        const MemoryUse memory = memory_of(
            comm,
            {.stage = 2,
             .dtype = DType::kBFloat16,
             .exchange = {.bucket_elements = 1 << 16},
             .wire = {.bits_up = 4, .bits_down = 8, .after_skip = after}});
        const auto is_near = [&](MemoryKind kind, double want) {
          EXPECT_NEAR(static_cast<double>(memory.now_of(kind)), want,
                      0.01 * want)
              << static_cast<int>(kind);
        };
        const double kept = after == AfterSkip::kKeep ? 4 : 2;
        is_near(MemoryKind::kStates, (kept + 12.0 / world) * n);
        is_near(MemoryKind::kGradients, 4 * n / world);
        // One that fills; two sent and received up, two down.
        is_near(MemoryKind::kBuckets,
                bucket * (2 + 2 * (2 * 4 / 8.0) + 2 * 8 / 8.0) +
                    (4 + 2) * 4 * bucket / 1024);
      });
}

}  // namespace
}  // namespace thinwire::zero::low_bit_cost_test
