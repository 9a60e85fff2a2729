// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/cast.h"

#include <gtest/gtest.h>

#include <cstring>

#include "support/guarded.h"
#include "support/kernel_cases.h"
#include "support/values.h"

namespace thinwire::kernels::cast_test {
namespace {

using test::Guarded;

class Casts : public test::KernelTest {
 protected:
  template <class F, class T>
  void compare_convert() {
    Guarded from(test::rounded_to<F>(test::normal_and_special(size, 1)), skip);
    Guarded to(std::vector<T>(size), skip);
    std::vector<T> want(size);
    convert(from.span(), to.span());
    ref::convert(from.span(), want);
    EXPECT_TRUE(to.is(want));
    EXPECT_TRUE(size == 0 ||
                std::memcmp(to.data(), want.data(), size * sizeof(T)) == 0)
        << "the bits of a NaN differ";
  }

  template <class S, class T>
  void compare_accumulate() {
    const std::vector<float> start = test::normal_and_special(size, 2);
    Guarded sum(test::rounded_to<S>(start), skip);
    std::vector<S> want = test::rounded_to<S>(start);
    for (const std::uint32_t seed : {3u, 4u, 5u}) {
      Guarded values(test::rounded_to<T>(test::normal_and_special(size, seed)),
                     skip);
      accumulate(sum.span(), values.span());
      ref::accumulate(want, values.span());
      EXPECT_TRUE(sum.is(want)) << seed;
    }
  }

  template <class T>
  void compare_with_each() {
    compare_convert<T, float>();
    compare_convert<T, Half>();
    compare_convert<T, BFloat16>();
    compare_accumulate<T, float>();
    compare_accumulate<T, Half>();
    compare_accumulate<T, BFloat16>();
  }
};

TEST_P(Casts, EqualReferenceBitForBit) {
  compare_with_each<float>();
  compare_with_each<Half>();
  compare_with_each<BFloat16>();
}

INSTANTIATE_TEST_SUITE_P(All, Casts, test::kernel_cases(), test::case_name);

// Whatever is cut where: as element by element.
TEST(JoinedCasts, WorkPartByPart) {
  const std::vector<float> values = test::normal(9, 1);
  for (const std::size_t cut : {0u, 4u, 7u, 9u}) {
    std::vector<BFloat16> first(cut);
    std::vector<float> second(9 - cut);
    const View to = View::joined(first, second);
    convert(values, to);
    for (std::size_t i = 0; i < 9; ++i) {
      const float want = i < cut ? to_float(to_bfloat16(values[i])) : values[i];
      std::vector<float> back(9);
      convert(to, back);
      EXPECT_EQ(back[i], want) << i;
      std::vector<Half> narrow(5);
      std::vector<float> wide(4);
      convert(to, View::joined(narrow, wide));
      EXPECT_EQ(i < 5 ? to_float(narrow[i]) : wide[i - 5],
                i < 5 ? to_float(to_half(want)) : want);
      accumulate(back, to);
      EXPECT_EQ(back[i], 2 * want);
    }
  }
}

}  // namespace
}  // namespace thinwire::kernels::cast_test
