// SPDX-License-Identifier: Apache-2.0
#include "exchange/bucket_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "thinwire/kernels/norm.h"

namespace thinwire {

// Found by gtest where Range lives.
static void PrintTo(const Range& range, std::ostream* out) {
  *out << range.offset << " of size " << range.size;
}

}  // namespace thinwire

namespace thinwire::exchange {
namespace {

using kernels::kSumChunk;

// Parameters within, across and at the ends of chunks, and empty ones in every
// place: the start, the end, on a border, in the middle.
ParameterLayout awkward_layout() {
  return ParameterLayout::of({{"empty_first", {0}},
                              {"one", {1}},
                              {"to_border", {kSumChunk - 1}},
                              {"empty_on_border", {0}},
                              {"across_two", {kSumChunk + 7}},
                              {"within", {100}},
                              {"empty_within", {0, 5}},
                              {"across_many", {3 * kSumChunk}},
                              {"scalar", {}},
                              {"empty_last", {0}}});
}

std::vector<Range> take_all_complete(BucketSchedule& buckets) {
  std::vector<Range> taken;
  while (const auto bucket = buckets.take_complete())
    taken.push_back(buckets.ranges()[*bucket]);
  return taken;
}

std::vector<Range> all_buckets(const ParameterLayout& layout,
                               std::size_t bucket_elements) {
  BucketSchedule buckets(layout, equal_buckets(layout.size(), bucket_elements));
  for (std::size_t p = 0; p < layout.parameters().size(); ++p)
    buckets.mark_ready(p);
  return take_all_complete(buckets);
}

std::vector<Range> cut(std::size_t size, std::size_t bucket_elements) {
  return all_buckets(ParameterLayout::of({{"all", {size}}}), bucket_elements);
}

std::vector<std::size_t> numbers(std::size_t count) {
  std::vector<std::size_t> all(count);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

TEST(BucketSchedule, BucketsLieOnTheGridAndAreSentFromTheEnd) {
  constexpr std::size_t c = kSumChunk;
  using Ranges = std::vector<Range>;
  EXPECT_EQ(cut(0, 1), Ranges{});
  EXPECT_EQ(cut(1, 1), (Ranges{{0, 1}}));
  EXPECT_EQ(cut(c - 1, 1), (Ranges{{0, c - 1}}));
  EXPECT_EQ(cut(c, 1), (Ranges{{0, c}}));
  EXPECT_EQ(cut(c + 1, 1), (Ranges{{c, 1}, {0, c}}));
  EXPECT_EQ(cut(c + 1, c), (Ranges{{c, 1}, {0, c}}));
  EXPECT_EQ(cut(c + 1, c + 1), (Ranges{{0, c + 1}}));
  EXPECT_EQ(cut(2 * c + 1, c + 1), (Ranges{{2 * c, 1}, {0, 2 * c}}));
  EXPECT_EQ(cut(5 * c - 3, 2 * c),
            (Ranges{{4 * c, c - 3}, {2 * c, 2 * c}, {0, 2 * c}}));
}

TEST(BucketSchedule, OneBucketMayHoldAllElements) {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  for (const std::size_t size : {std::size_t{1}, kSumChunk, 3 * kSumChunk + 1})
    for (const std::size_t elements : {most, most - 1, most / 2, 4 * kSumChunk})
      EXPECT_EQ(cut(size, elements), (std::vector<Range>{{0, size}}))
          << elements;
  EXPECT_EQ(cut(0, most), std::vector<Range>{});
}

// What leaves at which moment, by the definition: the last bucket that is still
// there, once all parameters with an element in it are ready.
TEST(BucketSchedule, BucketsAreSentInOneOrderForAnyOrderOfReadiness) {
  const ParameterLayout layout = awkward_layout();
  const auto parameters = layout.parameters();
  std::mt19937 random(5);
  for (const std::size_t elements :
       {std::size_t{1}, kSumChunk + 1, 3 * kSumChunk, 100 * kSumChunk}) {
    const std::vector<Range> expected = all_buckets(layout, elements);
    BucketSchedule buckets(layout, equal_buckets(layout.size(), elements));
    std::vector<std::size_t> order = numbers(parameters.size());
    for (int repeat = 0; repeat < 50; ++repeat) {
      buckets.begin();
      std::vector<bool> ready(parameters.size());
      std::vector<Range> left;
      const auto is_complete = [&](const Range& bucket) {
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          const Parameter& p = parameters[i];
          if (!ready[i] && p.size > 0 && p.offset < bucket.end() &&
              bucket.offset < p.offset + p.size)
            return false;
        }
        return true;
      };
      for (const std::size_t parameter : order) {
        buckets.mark_ready(parameter);
        ready[parameter] = true;
        for (const Range& range : take_all_complete(buckets))
          left.push_back(range);
        for (std::size_t i = 0; i < left.size(); ++i)
          ASSERT_TRUE(left[i] == expected[i] && is_complete(left[i]));
        if (left.size() < expected.size()) {
          ASSERT_FALSE(is_complete(expected[left.size()])) << "left too late";
        }
      }
      EXPECT_EQ(left, expected);
      EXPECT_EQ(buckets.left(), 0u);
      EXPECT_EQ(buckets.waiting_for(), std::nullopt);
      std::shuffle(order.begin(), order.end(), random);
    }
  }
}

TEST(BucketSchedule, WithoutBucketsWaitsForNothing) {
  const ParameterLayout nothing = ParameterLayout::of({{"a", {0}}});
  BucketSchedule none(nothing, {});
  EXPECT_EQ(none.waiting_for(), std::nullopt);
  none.mark_ready(0);
  EXPECT_TRUE(none.is_ready(0));
  EXPECT_EQ(none.take_complete(), std::nullopt);
  EXPECT_EQ(none.left(), 0u);
}

TEST(BucketSchedule, NamesTheParameterThatABucketWaitsFor) {
  const ParameterLayout layout = awkward_layout();
  BucketSchedule buckets(layout, equal_buckets(layout.size(), 1));
  // From the end on: of the last bucket, which "across_many" and "scalar"
  // share.
  EXPECT_EQ(layout.parameters()[*buckets.waiting_for()].name, "scalar");
  buckets.mark_ready(8);
  EXPECT_EQ(layout.parameters()[*buckets.waiting_for()].name, "across_many");
  buckets.mark_ready(7);
  EXPECT_EQ(take_all_complete(buckets).size(), 3u);
  // What is ready in front of it does not matter, nor do empty ones behind.
  buckets.mark_ready(1);
  EXPECT_EQ(layout.parameters()[*buckets.waiting_for()].name, "within");
  buckets.mark_ready(5);
  EXPECT_EQ(layout.parameters()[*buckets.waiting_for()].name, "across_two");
  buckets.mark_ready(4);
  EXPECT_EQ(take_all_complete(buckets).size(), 2u);
  EXPECT_EQ(layout.parameters()[*buckets.waiting_for()].name, "to_border");
  buckets.mark_ready(2);
  // Complete, and nobody has taken it: there is nothing to wait for.
  EXPECT_EQ(buckets.waiting_for(), std::nullopt);
  EXPECT_EQ(take_all_complete(buckets).size(), 1u);
  EXPECT_EQ(buckets.waiting_for(), std::nullopt);
}

TEST(BucketSchedule, CanBeginAgain) {
  const ParameterLayout layout =
      ParameterLayout::of({{"a", {kSumChunk}}, {"b", {2}}});
  BucketSchedule buckets(layout, equal_buckets(layout.size(), 1));
  buckets.mark_ready(1);
  buckets.mark_ready(1);  // counts once
  EXPECT_EQ(take_all_complete(buckets).size(), 1u);
  buckets.mark_ready(0);
  EXPECT_EQ(take_all_complete(buckets), (std::vector<Range>{{0, kSumChunk}}));
  buckets.begin();
  EXPECT_FALSE(buckets.is_ready(1));
  EXPECT_EQ(take_all_complete(buckets), std::vector<Range>{});
  EXPECT_EQ(buckets.waiting_for(), 1u);
  buckets.mark_ready(0);
  EXPECT_EQ(take_all_complete(buckets), std::vector<Range>{});
  buckets.mark_ready(1);
  EXPECT_EQ(take_all_complete(buckets).size(), 2u);
}

}  // namespace
}  // namespace thinwire::exchange
