// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/view.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "support/errors.h"

namespace thinwire::view_test {
namespace {

using test::expect_invalid;

constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();

static_assert(std::is_convertible_v<std::vector<float>&, View>);
static_assert(std::is_convertible_v<View, ConstView>);
static_assert(!std::is_convertible_v<ConstView, View>);
static_assert(!std::is_convertible_v<const std::vector<float>&, View>);
static_assert(!std::is_convertible_v<std::span<const float>, View>);
static_assert(!std::is_convertible_v<std::vector<std::uint32_t>&, ConstView>);

TEST(Views, ViewTheMemoryOfContiguousRanges) {
  std::vector<float> vector(7);
  std::array<std::int64_t, 3> array{};
  std::vector<Half> halves(5);

  const View a = vector;
  EXPECT_EQ(a.data(), vector.data());
  EXPECT_EQ(a.size(), 7u);
  EXPECT_EQ(a.dtype(), DType::kFloat32);
  EXPECT_EQ(a.bytes(), 28u);
  EXPECT_FALSE(a.empty());

  const ConstView b = array;
  EXPECT_EQ(b.data(), array.data());
  EXPECT_EQ(b.dtype(), DType::kInt64);
  EXPECT_EQ(b.bytes(), 24u);

  const ConstView c = std::span<const Half>(halves);
  EXPECT_EQ(c.dtype(), DType::kFloat16);
  EXPECT_EQ(c.bytes(), 10u);
}

TEST(Views, AreEmptyFloatsByDefault) {
  EXPECT_TRUE(View().empty());
  EXPECT_TRUE(ConstView().empty());
  EXPECT_EQ(ConstView().bytes(), 0u);
  EXPECT_TRUE(View().as<float>().empty());
}

TEST(Views, WriteThroughToTheirMemory) {
  std::vector<double> values(3);
  View(values).as<double>()[2] = 5;
  EXPECT_EQ(values[2], 5);
  EXPECT_EQ(ConstView(View(values)).as<double>()[2], 5);
}

TEST(Views, RefuseAnotherElementTypeNamingBoth) {
  std::vector<float> values(3);
  const View view = values;
  expect_invalid({"float32", "bfloat16"}, [&] { (void)view.as<BFloat16>(); });
  expect_invalid({"float32", "float64"},
                 [&] { (void)ConstView(view).as<double>(); });
  expect_invalid({"float32", "int32"}, [] { (void)View().as<std::int32_t>(); });
}

TEST(Subviews, BeginAtTheirElement) {
  std::vector<BFloat16> values(33);
  const View view = values;
  for (std::size_t offset = 0; offset <= values.size(); ++offset) {
    const std::size_t count = values.size() - offset;
    EXPECT_EQ(view.subview(offset, count).data(), values.data() + offset);
    EXPECT_EQ(view.subview(offset, count).size(), count);
    EXPECT_EQ(view.subview(offset, 0).size(), 0u);
    EXPECT_EQ(ConstView(view).subview(offset, count).data(),
              values.data() + offset);
    EXPECT_EQ(view.subview(offset, count).dtype(), DType::kBFloat16);
  }
}

TEST(Subviews, OfEmptyViewsAreEmpty) {
  EXPECT_TRUE(View().subview(0, 0).empty());
  EXPECT_TRUE(ConstView().subview(0, 0).empty());
}

// Offsets and counts whose sum overflows must not slip through.
TEST(Subviews, RefuseElementsOutside) {
  std::vector<float> values(8);
  const View view = values;
  struct Case {
    std::size_t offset, count;
  };
  for (const Case& c :
       {Case{0, 9}, Case{1, 8}, Case{8, 1}, Case{9, 0}, Case{0, kMost},
        Case{kMost, 0}, Case{kMost, 1}, Case{4, kMost - 3}, Case{kMost, kMost},
        Case{2, kMost}}) {
    expect_invalid({std::to_string(c.offset), std::to_string(c.count), "8"},
                   [&] { (void)view.subview(c.offset, c.count); });
    expect_invalid({std::to_string(c.offset)},
                   [&] { (void)ConstView(view).subview(c.offset, c.count); });
  }
}

// ---- two arrays

TEST(JoinedViews, AreOneArrayOfTwoDtypes) {
  std::vector<BFloat16> first(5);
  std::vector<float> second(3);
  const View view = View::joined(first, second);
  EXPECT_TRUE(view.is_joined());
  EXPECT_EQ(view.size(), 8u);
  EXPECT_EQ(view.first_size(), 5u);
  EXPECT_EQ(view.bytes(), 22u);
  EXPECT_EQ(view.dtype(), DType::kBFloat16);
  EXPECT_EQ(view.dtype_at(4), DType::kBFloat16);
  EXPECT_EQ(view.dtype_at(5), DType::kFloat32);
  EXPECT_EQ(view.parts()[0].data(), first.data());
  EXPECT_EQ(view.parts()[1].data(), second.data());
  EXPECT_EQ(view.parts()[1].size(), 3u);
  const std::string text = "two dtypes";
  expect_invalid({text}, [&] { (void)view.as<BFloat16>(); });
  expect_invalid({text}, [&] { (void)View::joined(view, second); });
}

TEST(JoinedViews, WithAnEmptyPartAreTheOtherPart) {
  std::vector<BFloat16> first(5);
  std::vector<float> second(3);
  const View empty;
  EXPECT_EQ(View::joined(first, empty).as<BFloat16>().data(), first.data());
  EXPECT_EQ(View::joined(empty, second).as<float>().data(), second.data());
  EXPECT_FALSE(View::joined(empty, empty).is_joined());
  const View plain = second;
  EXPECT_EQ(plain.first_size(), 3u);
  EXPECT_EQ(plain.dtype_at(2), DType::kFloat32);
  EXPECT_TRUE(plain.parts()[1].empty());
}

TEST(JoinedViews, SubviewsMaySpanOneOrBothParts) {
  std::vector<Half> first(5);
  std::vector<float> second(3);
  const ConstView view = View::joined(first, second);
  for (std::size_t offset = 0; offset <= 8; ++offset)
    for (std::size_t count = 0; offset + count <= 8; ++count) {
      const ConstView part = view.subview(offset, count);
      EXPECT_EQ(part.size(), count);
      EXPECT_EQ(part.is_joined(), offset < 5 && offset + count > 5);
      for (std::size_t i = 0; i < count; ++i) {
        const ConstView one = part.subview(i, 1);
        const std::size_t at = offset + i;
        EXPECT_EQ(one.data(), at < 5
                                  ? static_cast<const void*>(&first[at])
                                  : static_cast<const void*>(&second[at - 5]));
        EXPECT_EQ(one.dtype(), at < 5 ? DType::kFloat16 : DType::kFloat32);
      }
    }
  expect_invalid({"8 elements"}, [&] { (void)view.subview(4, 5); });
}

}  // namespace
}  // namespace thinwire::view_test
