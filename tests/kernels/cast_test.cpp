// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/cast.h"

#include <gtest/gtest.h>

#include "support/kernel_cases.h"
#include "support/values.h"

namespace thinwire::kernels::cast_test {
namespace {

class Casts : public test::KernelTest {
 protected:
  template <class A, class B>
  void compare_pair() {
    const auto of = [this]<class T>(T /*type*/, std::uint32_t seed) {
      return test::rounded_to<T>(test::normal_and_special(size, seed));
    };
    compare(
        convert, ref::convert,
        [](auto run, auto from, auto to) { run(from, to); }, of(A{}, 1),
        std::vector<B>(size));
    compare(
        accumulate, ref::accumulate,
        [](auto run, auto sum, auto a, auto b, auto c) {
          for (const auto& values : {a, b, c}) run(sum, values);
        },
        of(A{}, 2), of(B{}, 3), of(B{}, 4), of(B{}, 5));
  }

  template <class T>
  void compare_with_each() {
    compare_pair<T, float>();
    compare_pair<T, Half>();
    compare_pair<T, BFloat16>();
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
