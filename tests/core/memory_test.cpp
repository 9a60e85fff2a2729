// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/memory.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "thinwire/core/buffer.h"

namespace thinwire::memory_test {
namespace {

static_assert(!std::is_copy_constructible_v<MemoryNote>);
static_assert(std::is_nothrow_move_constructible_v<MemoryNote>);
static_assert(std::is_nothrow_move_assignable_v<MemoryNote>);

constexpr std::size_t kLine = Buffer::kAlignment;

Buffer lines(std::size_t count) {
  return Buffer::of<std::uint8_t>(count * kLine);
}

TEST(MemoryUses, OfAThreadBeginAtNothing) {
  std::thread([] {
    EXPECT_EQ(memory_use().total(), 0u);
    EXPECT_EQ(memory_use().peak(), 0u);
  }).join();
}

TEST(MemoryUses, CountWhatWasAllocated) {
  const std::uint64_t before = memory_use().total();
  {
    const Buffer none = Buffer::of<float>(0);
    EXPECT_EQ(memory_use().total(), before);
    const Buffer one = Buffer::of<float>(1);
    EXPECT_EQ(memory_use().total(), before + kLine);
    const Buffer more = Buffer::of<float>(17);
    EXPECT_EQ(memory_use().total(), before + 3 * kLine);
  }
  {
    constexpr std::size_t kHugePage = std::size_t{2} << 20;
    const Buffer large = Buffer::of<std::uint8_t>(2 * kHugePage + 1);
    EXPECT_EQ(memory_use().total(), before + 2 * kHugePage + kLine);
  }
  EXPECT_EQ(memory_use().total(), before);
}

TEST(MemoryUses, MoveWithTheMemory) {
  const std::uint64_t before = memory_use().total();
  std::optional<Buffer> first = lines(2);
  std::optional<Buffer> second = std::move(*first);
  EXPECT_EQ(memory_use().total(), before + 2 * kLine);
  first.reset();
  EXPECT_EQ(memory_use().total(), before + 2 * kLine);

  // What is moved over is freed.
  Buffer third = lines(5);
  third = std::move(*second);
  EXPECT_EQ(memory_use().total(), before + 2 * kLine);
  second = lines(1);
  EXPECT_EQ(memory_use().total(), before + 3 * kLine);
  third = Buffer();
  second = Buffer();
  EXPECT_EQ(memory_use().total(), before);
}

TEST(MemoryUses, AreOfTheInnermostScopesKind) {
  const MemoryUse before = memory_use();
  const Buffer other = lines(1);
  const MemoryScope states(MemoryKind::kStates);
  const Buffer state = lines(2);
  {
    const MemoryScope gradients(MemoryKind::kGradients);
    const Buffer gradient = lines(4);
    EXPECT_EQ(memory_use().now_of(MemoryKind::kGradients),
              before.now_of(MemoryKind::kGradients) + 4 * kLine);
  }
  const Buffer again = lines(8);

  const MemoryUse use = memory_use();
  EXPECT_EQ(use.now_of(MemoryKind::kOther),
            before.now_of(MemoryKind::kOther) + kLine);
  EXPECT_EQ(use.now_of(MemoryKind::kStates),
            before.now_of(MemoryKind::kStates) + 10 * kLine);
  EXPECT_EQ(use.now_of(MemoryKind::kGradients),
            before.now_of(MemoryKind::kGradients));
}

// The scope of another time: a Buffer takes its kind along.
TEST(MemoryUses, KeepTheirKindWhenFreedInAnotherScope) {
  const MemoryUse before = memory_use();
  std::optional<Buffer> bucket;
  {
    const MemoryScope scope(MemoryKind::kBuckets);
    bucket = lines(3);
  }
  const MemoryScope scope(MemoryKind::kParameters);
  bucket.reset();
  EXPECT_EQ(memory_use().now, before.now);
}

TEST(MemoryUses, AreReducedOnTheThreadThatMadeTheBuffer) {
  const MemoryUse before = memory_use();
  const MemoryScope scope(MemoryKind::kBuckets);
  std::thread([buffer = lines(3)]() mutable {
    EXPECT_EQ(memory_use().total(), 0u);
    const Buffer mine = lines(1);
    buffer = Buffer();
    // Scopes are of one thread.
    EXPECT_EQ(memory_use().now_of(MemoryKind::kOther), kLine);
    EXPECT_EQ(memory_use().total(), kLine);
  }).join();
  EXPECT_EQ(memory_use().now, before.now);
}

TEST(MemoryUses, OutliveTheirThread) {
  const MemoryUse before = memory_use();
  Buffer left;
  std::thread([&left] { left = lines(3); }).join();
  EXPECT_EQ(memory_use().now, before.now);
  left = Buffer();
  EXPECT_EQ(memory_use().now, before.now);
}

// For TSan: the owner allocates and reads while others free.
TEST(MemoryUses, AddUpWhileOtherThreadsFree) {
  const MemoryUse before = memory_use();
  std::vector<std::thread> threads;
  for (int i = 0; i < 100; ++i) {
    threads.emplace_back([buffer = lines(1)]() mutable { buffer = Buffer(); });
    EXPECT_LE(memory_use().total(), memory_use().peak());
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory_use().now, before.now);
}

TEST(MemoryPeaks, DividePeakMemoryByKind) {
  const MemoryUse before = memory_use();
  std::optional<Buffer> states;
  {
    const MemoryScope scope(MemoryKind::kStates);
    states = lines(4);
  }
  reset_memory_peak();
  EXPECT_EQ(memory_use().peak(), before.total() + 4 * kLine);
  { const MemoryNote gradients(MemoryKind::kGradients, 10 * kLine); }
  // More buckets than at the peak, but less in all.
  const MemoryNote buckets(MemoryKind::kBuckets, 9 * kLine);

  const MemoryUse use = memory_use();
  EXPECT_EQ(use.peak(), before.total() + 14 * kLine);
  EXPECT_EQ(use.at_peak_of(MemoryKind::kGradients),
            before.now_of(MemoryKind::kGradients) + 10 * kLine);
  EXPECT_EQ(use.at_peak_of(MemoryKind::kStates),
            before.now_of(MemoryKind::kStates) + 4 * kLine);
  EXPECT_EQ(use.at_peak_of(MemoryKind::kBuckets),
            before.now_of(MemoryKind::kBuckets));

  states.reset();
  EXPECT_EQ(memory_use().peak(), before.total() + 14 * kLine);
  reset_memory_peak();
  EXPECT_EQ(memory_use().peak(), before.total() + 9 * kLine);
  EXPECT_EQ(memory_use().at_peak, memory_use().now);
}

TEST(MemoryNotes, CountAsLongAsTheyLive) {
  const std::uint64_t before = memory_use().total();
  {
    std::vector<MemoryNote> notes;
    for (int i = 0; i < 10; ++i)  // moved as the vector grows
      notes.emplace_back(MemoryKind::kGradients, 7);
    EXPECT_EQ(memory_use().total(), before + 70);
    notes.erase(notes.begin());
    EXPECT_EQ(memory_use().total(), before + 63);
    notes[0] = MemoryNote();
    EXPECT_EQ(memory_use().total(), before + 56);
  }
  EXPECT_EQ(memory_use().total(), before);
}

}  // namespace
}  // namespace thinwire::memory_test
