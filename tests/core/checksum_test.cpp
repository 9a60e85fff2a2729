// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/checksum.h"

#include <gtest/gtest.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/xxh3.h"

namespace thinwire::checksum_test {
namespace {

TEST(Checksum, IsXxh3OfTheBytes) {
  // XXH3-64 of nothing, seed 0, as xxHash's specification gives it.
  EXPECT_EQ(checksum(std::string_view("")), 0x2d06800538d394c2u);
  EXPECT_EQ(checksum(ConstView()), 0x2d06800538d394c2u);
}

TEST(Checksum, OfAViewIsThatOfItsBytes) {
  const std::vector<std::uint8_t> bytes = {'t', 'h', 'i', 'n'};
  EXPECT_EQ(checksum(bytes), checksum(std::string_view("thin")));
}

TEST(Checksum, OfPiecesIsThatOfAllOfThem) {
  std::vector<std::uint8_t> bytes(4097);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::uint8_t>(i * 31 + i / 256);
  const ConstView all(bytes);
  Checksum pieces;
  EXPECT_EQ(pieces.take(), checksum(ConstView()));
  for (const std::size_t size : {1u, 31u, 256u, 1023u, 4097u}) {
    for (std::size_t at = 0; at < bytes.size(); at += size)
      pieces.add(all.subview(at, std::min(size, bytes.size() - at)));
    EXPECT_EQ(pieces.take(), checksum(all)) << "in pieces of " << size;
  }
}

// Of every length up to some blocks of 1024 bytes, whatever instructions it
// was computed with.
TEST(Checksum, IsTheSameOnEveryProcessor) {
  const Xxh3* const avx2 = xxh3_avx2();
  if (avx2 == nullptr) GTEST_SKIP() << "this processor has no AVX2";
  std::vector<std::uint8_t> bytes(4097);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::uint8_t>(i * 31 + i / 256);
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    const std::uint64_t any = XXH3_64bits(bytes.data(), size);
    ASSERT_EQ(avx2->hash(bytes.data(), size), any) << size;
    ASSERT_EQ(checksum(ConstView(bytes).subview(0, size)), any) << size;
  }
}

TEST(Checksum, DistinguishesZeroFromMinusZero) {
  const std::vector<float> zero = {0.0f}, minus_zero = {-0.0f};
  EXPECT_NE(checksum(zero), checksum(minus_zero));
}

TEST(Checksum, ChangesWithEveryBit) {
  std::vector<std::uint8_t> bytes(33);
  const std::uint64_t before = checksum(bytes);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    const auto mask = static_cast<std::uint8_t>(1u << bit % 8);
    bytes[bit / 8] = static_cast<std::uint8_t>(bytes[bit / 8] ^ mask);
    EXPECT_NE(checksum(bytes), before) << bit;
    bytes[bit / 8] = static_cast<std::uint8_t>(bytes[bit / 8] ^ mask);
  }
  EXPECT_EQ(checksum(bytes), before);
}

}  // namespace
}  // namespace thinwire::checksum_test
