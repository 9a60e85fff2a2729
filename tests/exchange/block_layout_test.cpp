// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/block_layout.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <vector>

#include "exchange/codec/sign.h"
#include "exchange/pipeline/records.h"
#include "exchange/support.h"
#include "support/errors.h"
#include "thinwire/exchange/bucket_rule.h"

namespace thinwire::exchange::block_layout_test {
namespace {

struct Drawn {
  std::vector<Range> units;
  BlockOptions options;
};

Drawn draw() {
  const auto sizes = *rc::gen::container<std::vector<std::size_t>>(
      rc::gen::inRange<std::size_t>(0, 3000));
  return {test::units_of(sizes),
          {.world_size = *rc::gen::inRange(1, 9),
           .bucket_elements = *rc::gen::inRange<std::size_t>(1, 5000)}};
}

// Every element of every unit is in exactly one block, and no block reaches
// over a unit's end.
void expect_partition(const Drawn& drawn, const BlockLayout& layout) {
  std::vector<int> covered(drawn.units.empty() ? 0 : drawn.units.back().end());
  for (const Block& block : layout.blocks()) {
    RC_ASSERT(block.values.size == block.residual.size);
    for (std::size_t i = block.values.offset; i < block.values.end(); ++i)
      ++covered[i];
    const bool inside = std::any_of(
        drawn.units.begin(), drawn.units.end(), [&](const Range& unit) {
          return block.values.offset >= unit.offset &&
                 block.values.end() <= unit.end();
        });
    RC_ASSERT(inside);
  }
  RC_ASSERT(std::all_of(covered.begin(), covered.end(),
                        [](int times) { return times == 1; }));
}

std::vector<const Codec*> codecs() {
  return {&sign_codec(), &codec_of(4), &codec_of(8)};
}

// Residuals and records lie without gap or overlap; servers' chunks are
// neighbours in rank order.
void expect_places(const BlockLayout& layout, const Codec& codec) {
  const RecordMap records(layout, codec);
  std::vector<Range> residuals;
  std::size_t record = 0;
  for (std::size_t b = 0; b < layout.blocks().size(); ++b) {
    const Block& block = layout.blocks()[b];
    residuals.push_back(block.residual);
    RC_ASSERT(records.begin(b) == record);
    RC_ASSERT(record % 4 == 0u);
    record += codec.record_bytes(block.values.size);
  }
  RC_ASSERT(records.begin(layout.blocks().size()) == record);
  std::sort(residuals.begin(), residuals.end(),
            [](const Range& a, const Range& b) { return a.offset < b.offset; });
  std::size_t end = 0;
  for (const Range& residual : residuals) {
    RC_ASSERT(residual.offset == end);
    end = residual.end();
  }
  RC_ASSERT(layout.residual_size() == end);

  std::size_t next = 0;
  for (const Bucket& bucket : layout.buckets()) {
    RC_ASSERT(bucket.first_block() == next);
    next = bucket.end_block();
    RC_ASSERT(
        std::is_sorted(bucket.server_begin.begin(), bucket.server_begin.end()));
    for (std::size_t r = 0; r + 1 < bucket.server_begin.size(); ++r)
      for (std::size_t b = bucket.server_begin[r];
           b < bucket.server_begin[r + 1]; ++b)
        RC_ASSERT(layout.blocks()[b].server == static_cast<int>(r));
  }
  RC_ASSERT(next == layout.blocks().size());
}

TEST(BlockLayout, CutsAnyUnitsIntoBlocksThatNeverCrossOne) {
  EXPECT_TRUE(rc::check([] {
    const Drawn drawn = draw();
    const BlockLayout layout(drawn.units, drawn.options);
    expect_partition(drawn, layout);
    for (const Codec* codec : codecs()) expect_places(layout, *codec);
    for (const Block& block : layout.blocks()) {
      RC_ASSERT(block.values.size >= 1u);
      RC_ASSERT(block.values.size <= 1024u);
    }
  }));
}

TEST(BlockLayout, BalancesServersToWithinOneBlock) {
  EXPECT_TRUE(rc::check([] {
    const Drawn drawn = draw();
    const BlockLayout layout(drawn.units, drawn.options);
    for (const Bucket& bucket : layout.buckets()) {
      std::size_t total = 0;
      for (std::size_t b = bucket.first_block(); b < bucket.end_block(); ++b)
        total += layout.blocks()[b].values.size;
      const auto world = static_cast<std::size_t>(layout.world_size());
      for (std::size_t r = 0; r < world; ++r) {
        std::size_t chunk = 0;
        for (std::size_t b = bucket.server_begin[r];
             b < bucket.server_begin[r + 1]; ++b)
          chunk += layout.blocks()[b].values.size;
        RC_ASSERT(chunk <= total / world + 1 + 1024);
      }
    }
  }));
}

TEST(BlockLayout, CutsTheSameBlocksForAnyBucketsAndRanks) {
  EXPECT_TRUE(rc::check([] {
    Drawn drawn = draw();
    const BlockLayout one(drawn.units, drawn.options);
    drawn.options.bucket_elements = *rc::gen::inRange<std::size_t>(1, 9000);
    drawn.options.world_size = *rc::gen::inRange(1, 9);
    const BlockLayout other(drawn.units, drawn.options);
    RC_ASSERT(one.blocks().size() == other.blocks().size());
    for (std::size_t b = 0; b < one.blocks().size(); ++b) {
      RC_ASSERT(one.blocks()[b].values == other.blocks()[b].values);
    }
  }));
}

TEST(BlockLayout, IsEmptyWithoutElements) {
  const std::vector<Range> units = {{0, 0}, {0, 0}};
  const BlockLayout layout(units, {.world_size = 3});
  EXPECT_TRUE(layout.blocks().empty());
  EXPECT_TRUE(layout.buckets().empty());
}

TEST(BlockLayout, RefusesOptionsOutOfRange) {
  const std::vector<Range> units = {{0, 10}};
  const auto refused = [&](BlockOptions options, const char* name) {
    test::expect_invalid({name, "got 0"}, [&] { BlockLayout(units, options); });
  };
  refused({.world_size = 0}, "world_size");
  refused({.bucket_elements = 0}, "bucket_elements");
  refused({.block_elements = 0}, "block_elements");
}

// ---- how large buckets are

constexpr std::size_t kMi = std::size_t{1} << 20;

TEST(BucketRule, IsAMebielementForFewRanksAndSmallModels) {
  for (const int peers : {1, 2, 8})
    for (const std::size_t n : {std::size_t{0}, kMi, 4 * kMi, 25 * kMi})
      EXPECT_EQ(bucket_rule(n, peers, 1), kMi) << peers << " " << n;
}

// 16 KiB to each peer; more than that where there would be over 32 buckets, and
// less where there would be under 4.
TEST(BucketRule, SendsMessagesOf16KiBInFourTo32Buckets) {
  constexpr std::size_t kLarge = 340'000'000;
  EXPECT_EQ(bucket_rule(kLarge, 8, 1), kLarge / 32);
  EXPECT_EQ(bucket_rule(kLarge, 128, 1), 128 * 131072u);
  EXPECT_EQ(bucket_rule(kLarge, 1024, 1), kLarge / 4);
  EXPECT_EQ(bucket_rule(kLarge, 1024, 4), 1024 * 32768u);
  EXPECT_EQ(bucket_rule(kLarge, 1024, 8), 1024 * 16384u);
  EXPECT_EQ(bucket_rule(25 * kMi, 1024, 1), 25 * kMi / 4);
}

TEST(BucketRule, BucketsOf16BitsAreFourTimesAsLarge) {
  EXPECT_EQ(bucket_rule(8 * kMi, 2, 16), 4 * kMi);
  EXPECT_EQ(bucket_rule(1000 * kMi, 2, 16), 1000 * kMi / 32);
}

TEST(BucketRule, IsTheSameForHierarchicalRanks) {
  const comm::Hosts flat{.size = 256};
  const comm::Hosts hosts{.size = 32, .ranks_per_host = 8};
  constexpr std::size_t kLarge = 400'000'000;
  for (const comm::Hosts& placed : {flat, hosts})
    EXPECT_EQ(bucket_elements(0, kLarge, placed, 1), 256 * 131072u);
  const comm::Hosts two{.size = 2, .ranks_per_host = 2};
  EXPECT_EQ(bucket_elements(0, 10 * kMi, two, 1), kMi);
  EXPECT_EQ(bucket_elements(0, 10 * kMi, two, 16), 4 * kMi);
  EXPECT_EQ(bucket_elements(77, kLarge, hosts, 1), 77u);
}

}  // namespace
}  // namespace thinwire::exchange::block_layout_test
