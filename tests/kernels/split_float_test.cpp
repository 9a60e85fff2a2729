// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "support/kernel_cases.h"
#include "support/long.h"
#include "support/values.h"
#include "thinwire/kernels/split_float.h"

namespace thinwire::kernels::split_float_test {
namespace {

class SplitFloat : public test::KernelTest {};
INSTANTIATE_TEST_SUITE_P(All, SplitFloat, test::kernel_cases(),
                         test::case_name);

TEST_P(SplitFloat, HasTheBitsOfTheReferenceAndRestoresFloats) {
  const std::vector<float> values = test::normal_and_special(size, 3);
  std::vector<BFloat16> high(size);
  std::vector<std::uint16_t> low(size);
  compare(
      split_float, ref::split_float,
      [&](auto run, auto of, auto upper, auto lower) {
        run(of.data(), upper.data(), lower.data(), size);
      },
      values, high, low);
  ref::split_float(values.data(), high.data(), low.data(), size);
  compare(
      join_float, ref::join_float,
      [&](auto run, auto upper, auto lower, auto joined) {
        run(upper.data(), lower.data(), joined.data(), size);
        for (std::size_t i = 0; i < size; ++i)
          EXPECT_EQ(std::bit_cast<std::uint32_t>(joined[i]),
                    std::bit_cast<std::uint32_t>(values[i]));
      },
      high, low, std::vector<float>(size));
}

// `high` must be the nearest bf16, of two the one further from zero.
void expect_rounded(float value, BFloat16 high) {
  const double exact = value;
  const double rounded = to_float(high);
  const auto next = [&](int by) {
    return double{
        to_float(BFloat16{static_cast<std::uint16_t>(high.bits + by)})};
  };
  ASSERT_TRUE(std::isfinite(rounded)) << value;
  const double distance = std::abs(rounded - exact);
  if ((high.bits & 0x7fff) != 0) {
    ASSERT_LE(distance, std::abs(next(-1) - exact)) << value;
  }
  if (const double above = next(1); std::isfinite(above)) {
    ASSERT_LT(distance, std::abs(above - exact)) << value;
  }
}

// Patterns first, first + step, ...: is every finite one below 3.38e38 rounded
// to a finite bf16 and given back?
void go_through(std::uint64_t first, std::uint64_t step, bool rounding) {
  constexpr std::size_t kAtOnce = 4096;
  std::vector<float> values(kAtOnce), back(kAtOnce);
  std::vector<BFloat16> high(kAtOnce);
  std::vector<std::uint16_t> low(kAtOnce);
  for (std::uint64_t at = first; at < std::uint64_t{1} << 32;) {
    std::size_t count = 0;
    for (; count < kAtOnce && at < std::uint64_t{1} << 32; at += step)
      values[count++] = std::bit_cast<float>(static_cast<std::uint32_t>(at));
    split_float(values.data(), high.data(), low.data(), count);
    join_float(high.data(), low.data(), back.data(), count);
    bool same = true;
    for (std::size_t i = 0; i < count; ++i) {
      const bool counts = std::abs(values[i]) < 3.38e38f;  // no NaN either
      same = same && (!counts || (std::bit_cast<std::uint32_t>(back[i]) ==
                                      std::bit_cast<std::uint32_t>(values[i]) &&
                                  (high[i].bits & 0x7f80) != 0x7f80));
      if (counts && rounding) expect_rounded(values[i], high[i]);
    }
    ASSERT_TRUE(same) << "patterns before " << at;
  }
}

TEST(SplitFloatValues, EveryFiniteFloatIsRestored) {
  if (test::is_long()) return go_through(0, 1, false);
  go_through(0, 4093, false);  // prime: all low halves
}

TEST(SplitFloatValues, TheHighHalfIsTheNearestWithTiesAwayFromZero) {
  go_through(0, 65'521, true);
  go_through(0x8000, 0x10000, true);      // ties
  go_through(0x8000 - 1, 0x10000, true);  // just below, and above them
  go_through(0x8000 + 1, 0x10000, true);
}

}  // namespace
}  // namespace thinwire::kernels::split_float_test
