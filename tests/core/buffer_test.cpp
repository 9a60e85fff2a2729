// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "support/errors.h"

namespace thinwire::buffer_test {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

static_assert(!std::is_copy_constructible_v<Buffer>);
static_assert(std::is_nothrow_move_constructible_v<Buffer>);
static_assert(std::is_nothrow_move_assignable_v<Buffer>);

std::uintptr_t address(const Buffer& buffer) {
  return reinterpret_cast<std::uintptr_t>(buffer.data());
}

TEST(Buffers, AreAlignedAndZeroAtEverySize) {
  for (const DType dtype :
       {DType::kUInt8, DType::kFloat16, DType::kFloat32, DType::kFloat64})
    for (const std::size_t size : {1u, 7u, 31u, 32u, 33u, 4097u, 1'000'003u}) {
      const Buffer buffer(size, dtype);
      EXPECT_EQ(buffer.size(), size);
      EXPECT_EQ(buffer.dtype(), dtype);
      EXPECT_EQ(buffer.bytes(), size * size_of(dtype));
      EXPECT_EQ(address(buffer) % Buffer::kAlignment, 0u);
      const std::span<const std::byte> bytes(
          static_cast<const std::byte*>(buffer.data()), buffer.bytes());
      EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(),
                              [](std::byte b) { return b == std::byte{0}; }));
    }
}

// What was freed before must not show through.
TEST(Buffers, AreZeroInMemoryThatWasUsed) {
  for (int i = 0; i < 8; ++i) {
    Buffer buffer = Buffer::of<float>(1000);
    for (float& value : buffer.as<float>()) {
      ASSERT_EQ(value, 0.0f);
      value = 1;
    }
  }
}

TEST(Buffers, WithoutFillDifferOnlyInTheirContents) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{4} << 20}) {
    const std::uint64_t before = memory_use().total();
    const Buffer zeros(size, DType::kFloat32);
    const std::uint64_t counted = memory_use().total() - before;
    Buffer buffer(size, DType::kFloat32, Fill::kNone);
    EXPECT_EQ(memory_use().total() - before, 2 * counted);
    EXPECT_EQ(buffer.size(), size);
    EXPECT_EQ(buffer.dtype(), DType::kFloat32);
    EXPECT_EQ(
        reinterpret_cast<std::uintptr_t>(buffer.data()) % Buffer::kAlignment,
        0u);
    buffer.as<float>()[size - 1] = 1;
  }
}

TEST(Buffers, OfFourMebibytesBeginOnAHugePage) {
  for (const std::size_t bytes :
       {2 * kHugePage, 2 * kHugePage + 1, 5 * kHugePage - 3}) {
    const Buffer buffer = Buffer::of<std::uint8_t>(bytes);
    EXPECT_EQ(address(buffer) % kHugePage, 0u) << bytes;
    EXPECT_EQ(buffer.as<std::uint8_t>().back(), 0u);
  }
}

TEST(Buffers, OfNothingHaveNoMemory) {
  const Buffer none(0, DType::kBFloat16);
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_EQ(none.bytes(), 0u);
  EXPECT_EQ(none.dtype(), DType::kBFloat16);
  EXPECT_TRUE(none.as<BFloat16>().empty());
  EXPECT_TRUE(Buffer().empty());
}

TEST(Buffers, ThatAreTooLargeThrowBadAllocAndAreNotCounted) {
  const std::uint64_t before = memory_use().total();
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  EXPECT_THROW((void)Buffer::of<float>(kMost), std::bad_alloc);
  EXPECT_THROW((void)Buffer::of<double>(kMost / 8), std::bad_alloc);
  EXPECT_THROW((void)Buffer::of<std::uint8_t>(kMost), std::bad_alloc);
  EXPECT_EQ(memory_use().total(), before);
}

TEST(Buffers, GiveTheirMemoryAwayWhenMoved) {
  Buffer first = Buffer::of<float>(33);
  first.as<float>()[32] = 7;
  const void* const memory = first.data();

  Buffer second = std::move(first);
  EXPECT_EQ(second.data(), memory);
  EXPECT_EQ(second.size(), 33u);
  EXPECT_EQ(second.as<float>()[32], 7);
  // NOLINTNEXTLINE(bugprone-use-after-move): what is promised of it
  EXPECT_TRUE(first.empty());
  EXPECT_EQ(first.data(), nullptr);

  Buffer third = Buffer::of<Half>(5);
  third = std::move(second);
  EXPECT_EQ(third.data(), memory);
  EXPECT_EQ(third.dtype(), DType::kFloat32);
  // NOLINTNEXTLINE(bugprone-use-after-move): what is promised of it
  EXPECT_TRUE(second.empty());
  EXPECT_TRUE(second.view().empty());
}

TEST(Buffers, ViewTheirElements) {
  Buffer buffer = Buffer::of<std::int32_t>(9);
  buffer.as<std::int32_t>()[8] = -4;
  const Buffer& same = buffer;
  EXPECT_EQ(same.view().data(), buffer.data());
  EXPECT_EQ(same.view().as<std::int32_t>()[8], -4);
  test::expect_invalid({"int32", "float32"}, [&] { (void)buffer.as<float>(); });
}

}  // namespace
}  // namespace thinwire::buffer_test
