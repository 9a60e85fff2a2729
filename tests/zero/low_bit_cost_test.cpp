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

TEST(LowBitCost, AStepSendsRecordsAndSquares) {
  const auto n = static_cast<double>(large().size());
  const double cells = n / 1024;
  for (const int world : test::fewer_if_sanitized<int>({2, 4, 8}, 1))
    for (const auto& [up, down] : {std::pair(4, 4), {8, 4}, {8, 8}})
      test::run_ranks("local", world, [&](comm::Communicator& comm) {
        ZeroOptions options{.stage = 2,
                            .dtype = DType::kBFloat16,
                            .exchange = {.bucket_elements = 1 << 16},
                            .wire = {.bits_up = up, .bits_down = down}};
        const comm::Counters before = comm.counters();
        ZeroRun run(comm, large(), test::adam_rule(), options);
        const comm::Counters made = comm.counters();
        run.step(std::vector<float>(run.layout.size(), 0.25f));
        const double share = (world - 1.0) / world;
        const double want =
            share * (n * (up + down) / 8 + 2 * 4 * cells + 8 * cells);
        const auto sent =
            static_cast<double>(comm.counters().bytes_sent - made.bytes_sent);
        EXPECT_NEAR(sent, want, 0.01 * want) << up << down << world;
        EXPECT_GT(made.bytes_sent, before.bytes_sent);
      });
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

TEST(LowBitCost, EachHostsCardIsCrossedOnce) {
  // Whole buckets: gathers of 64 KiB and less go to all ranks directly.
  const auto layout = ParameterLayout::of({{"a", {400'000}}, {"b", {255'360}}});
  const auto n = static_cast<double>(layout.size());
  test::run_ranks("local", 4, [&](comm::Communicator& flat) {
    const auto comm =
        flat.by_host(comm::find_hosts(flat, {.ranks_per_host = 2}));
    ZeroRun run(*comm, layout, test::adam_rule(),
                {.stage = 2,
                 .dtype = DType::kBFloat16,
                 .exchange = {.bucket_elements = 1 << 16},
                 .wire = {.bits_up = 4, .bits_down = 8}});
    const comm::Counters before = comm->counters();
    run.step(std::vector<float>(layout.size(), 0.25f));
    // Half of what a host has, shared out over two ranks; squares, which are
    // few, to both ranks of the other host.
    const double cells = n / 1024;
    const double want =
        (n * (4 + 8) / 8 + 2 * 4 * cells) / 4 + 2 * 8 * cells / 4;
    EXPECT_NEAR(static_cast<double>(comm->counters().bytes_between_hosts -
                                    before.bytes_between_hosts),
                want, 0.01 * want);
  });
}

}  // namespace
}  // namespace thinwire::zero::low_bit_cost_test
