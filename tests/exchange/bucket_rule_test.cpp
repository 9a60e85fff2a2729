// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/bucket_rule.h"

#include <gtest/gtest.h>

namespace thinwire::exchange::bucket_rule_test {
namespace {

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

TEST(BucketRule, IsTheSameByHost) {
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
}  // namespace thinwire::exchange::bucket_rule_test
