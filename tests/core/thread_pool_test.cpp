// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/environment.h"
#include "support/errors.h"

namespace thinwire::thread_pool_test {
namespace {

using test::expect_invalid;
using test::ScopedVariable;

class ThreadPools : public ::testing::TestWithParam<int> {
 protected:
  ThreadPool pool{GetParam()};
};

TEST_P(ThreadPools, CallEveryPartOnce) {
  EXPECT_EQ(pool.num_threads(), GetParam());
  for (const std::size_t parts : {0u, 1u, 2u, 7u, 31u, 32u, 33u, 4097u}) {
    std::vector<std::atomic<int>> calls(parts);
    pool.for_each(parts, [&](std::size_t part) { ++calls.at(part); });
    for (std::size_t part = 0; part < parts; ++part)
      ASSERT_EQ(calls[part], 1) << part << " of " << parts;
  }
}

// What a part writes without any lock is there for the caller, and for the
// next dispatch.
TEST_P(ThreadPools, MakeWritesVisibleToTheCallerAndTheNextDispatch) {
  std::vector<int> values(1000), mirrored(values.size());
  for (int round = 0; round < 100; ++round) {
    pool.for_each(values.size(), [&](std::size_t part) {
      mirrored[part] = values[values.size() - 1 - part];
    });
    pool.for_each(values.size(),
                  [&](std::size_t part) { values[part] = mirrored[part] + 1; });
    ASSERT_EQ(values, std::vector<int>(values.size(), round + 1));
  }
}

TEST_P(ThreadPools, GiveEachThreadOneRangeOfAdjacentParts) {
  constexpr std::size_t kParts = 101;
  std::vector<std::thread::id> who(kParts);
  for (int round = 0; round < 50; ++round) {
    pool.for_each(kParts, [&](std::size_t part) {
      who[part] = std::this_thread::get_id();
    });
    std::size_t changes = 0;
    for (std::size_t part = 1; part < kParts; ++part)
      changes += who[part] != who[part - 1] ? 1 : 0;
    EXPECT_EQ(changes + 1, static_cast<std::size_t>(GetParam()));
    EXPECT_EQ(who[0], std::this_thread::get_id());
  }
}

using Pieces = std::set<std::pair<std::size_t, std::size_t>>;

Pieces pieces_of(ThreadPool& pool, std::size_t size, std::size_t grain) {
  std::mutex mutex;
  Pieces pieces;
  pool.for_ranges(size, grain, [&](std::size_t begin, std::size_t end) {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(pieces.emplace(begin, end).second) << begin;
  });
  return pieces;
}

TEST_P(ThreadPools, CutRangesAtGrainsWithoutGaps) {
  for (const std::size_t size : {0u, 1u, 7u, 31u, 32u, 33u, 4097u})
    for (const std::size_t grain : {1u, 2u, 32u, 1024u, 5000u}) {
      const Pieces pieces = pieces_of(pool, size, grain);
      EXPECT_LE(pieces.size(), static_cast<std::size_t>(GetParam()));
      std::size_t at = 0;
      for (const auto& [begin, end] : pieces) {
        EXPECT_EQ(begin, at);
        EXPECT_LT(begin, end) << "an empty piece";
        EXPECT_EQ(begin % grain, 0u);
        at = end;
      }
      EXPECT_EQ(at, size);
    }
}

TEST_P(ThreadPools, CutTheSameRangesEveryTime) {
  const Pieces first = pieces_of(pool, 4097, 32);
  for (int round = 0; round < 50; ++round) {
    EXPECT_EQ(pieces_of(pool, 4097, 32), first);
  }
  ThreadPool another(GetParam());
  EXPECT_EQ(pieces_of(another, 4097, 32), first);
}

TEST_P(ThreadPools, RefuseAGrainOfZero) {
  expect_invalid({"grain", ">= 1", "0"}, [&] {
    pool.for_ranges(5, 0, [](std::size_t, std::size_t) {});
  });
}

TEST_P(ThreadPools, RethrowTheExceptionOfTheLowestPart) {
  constexpr std::size_t kParts = 64;
  for (int round = 0; round < 20; ++round) {
    try {
      pool.for_each(kParts, [](std::size_t part) {
        if (part % 8 == 5) throw std::runtime_error(std::to_string(part));
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "5");
    }
  }
}

TEST_P(ThreadPools, EndEveryOtherRunBeforeRethrowing) {
  const auto threads = static_cast<std::size_t>(GetParam());
  std::vector<std::atomic<int>> calls(threads);
  EXPECT_THROW(pool.for_each(threads,
                             [&](std::size_t part) {
                               ++calls[part];
                               if (part == 0) throw std::runtime_error("first");
                             }),
               std::runtime_error);
  for (const auto& count : calls) EXPECT_EQ(count, 1);
}

TEST_P(ThreadPools, SurviveManyDispatches) {
  std::atomic<std::uint64_t> sum = 0;
  constexpr std::uint64_t kRounds = 5000;
  for (std::uint64_t round = 0; round < kRounds; ++round)
    pool.for_each(8, [&](std::size_t part) { sum += part; });
  EXPECT_EQ(sum, kRounds * 28);
}

// Workers are asleep by then, not spinning.
TEST_P(ThreadPools, WorkAgainAfterAPause) {
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int> calls = 0;
    pool.for_each(16, [&](std::size_t) { ++calls; });
    EXPECT_EQ(calls, 16);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ThreadPools, ::testing::Values(1, 2, 3, 8));

TEST(ThreadPoolConstruction, EndsAtOnceWithoutWork) {
  for (int round = 0; round < 50; ++round) ThreadPool pool(3);
}

TEST(ThreadPoolConstruction, RefusesNumbersOutOfRange) {
  for (const int threads : {-1, 1025})
    expect_invalid({"num_threads", "[0, 1024]", std::to_string(threads)},
                   [&] { ThreadPool pool(threads); });
}

TEST(ThreadPoolConstruction, TakesTheNumberOfThreadsFromTheEnvironment) {
  {
    const ScopedVariable unset("THINWIRE_NUM_THREADS", nullptr);
    EXPECT_EQ(ThreadPool().num_threads(), 1);
  }
  const ScopedVariable three("THINWIRE_NUM_THREADS", "3");
  EXPECT_EQ(ThreadPool().num_threads(), 3);
  EXPECT_EQ(ThreadPool(2).num_threads(), 2);
}

TEST(ThreadPoolConstruction, RefusesAMalformedPrefetchVariable) {
  const ScopedVariable bad("THINWIRE_PREFETCH", "fast");
  for (const int threads : {0, 1, 3})
    expect_invalid({"THINWIRE_PREFETCH", "auto, on or off", "'fast'"},
                   [&] { ThreadPool pool(threads); });
}

}  // namespace
}  // namespace thinwire::thread_pool_test
