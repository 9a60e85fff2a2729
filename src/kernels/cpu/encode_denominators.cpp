// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"
#include "kernels/log2.h"
#include "thinwire/kernels/denominator_codes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/encode_denominators.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// This stands after foreach_target.h, which includes the file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/signs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

using Double = hn::CappedTag<double, 8>;
inline constexpr std::size_t kDoubles = hn::MaxLanes(Double());

// Computes log2() of thinwire/kernels/denominator_codes.h.
HWY_INLINE hn::Vec<Double> log2_of(Double d, hn::Vec<Double> x) {
  const hn::RebindToUnsigned<Double> du;
  const auto bits = hn::BitCast(du, x);
  // The exponent's bits, placed below the leading bits of 2^52, read as 2^52
  // plus the exponent.
  const auto placed =
      hn::Or(hn::ShiftRight<52>(bits), hn::BitCast(du, hn::Set(d, 0x1p52)));
  auto exponent = hn::Sub(hn::BitCast(d, placed), hn::Set(d, 0x1p52 + 1023.0));
  auto m = hn::BitCast(d, hn::Or(hn::And(bits, hn::Set(du, kFractionBits)),
                                 hn::Set(du, kOneBits)));
  const auto one = hn::Set(d, 1.0);
  const auto high = hn::Gt(m, hn::Set(d, kSqrt2));
  m = hn::IfThenElse(high, hn::Mul(m, hn::Set(d, 0.5)), m);
  exponent = hn::IfThenElse(high, hn::Add(exponent, one), exponent);
  const auto t = hn::Div(hn::Sub(m, one), hn::Add(m, one));
  const auto square = hn::Mul(t, t);
  auto sum = hn::Set(d, kLog2Series.back());
  for (std::size_t k = kLog2Series.size() - 1; k-- > 0;)
    sum = hn::Add(hn::Mul(sum, square), hn::Set(d, kLog2Series[k]));
  return hn::Add(exponent, hn::Mul(t, sum));
}

// Computes k for the first `count` elements at d. Reads a full vector, in which
// the elements past `count` may be any positive numbers.
HWY_INLINE void steps_of(const float* d, const CodeRange& range, double most,
                         std::int32_t* k) {
  const Double wide;
  const hn::Rebind<float, Double> narrow;
  const auto x = hn::PromoteTo(wide, hn::LoadU(narrow, d));
  const auto above = hn::Sub(log2_of(wide, x), hn::Set(wide, range.low));
  const auto steps = hn::Round(hn::Div(above, hn::Set(wide, range.step)));
  const auto inside =
      hn::Min(hn::Max(steps, hn::Zero(wide)), hn::Set(wide, most));
  const hn::Rebind<std::int32_t, Double> integers;
  hn::StoreU(hn::DemoteTo(integers, inside), integers, k);
}

void run_encode(const float* d, const std::uint32_t* active, std::size_t size,
                const CodeRange& range, int bits, std::uint8_t* codes) {
  const auto most = static_cast<double>(most_code_steps(bits));
  for (std::size_t i = 0; i < size; i += kDoubles) {
    const std::size_t count = std::min(kDoubles, size - i);
    std::array<float, kDoubles> values;
    values.fill(1.0f);
    std::copy_n(d + i, count, values.begin());
    std::array<std::int32_t, kDoubles> k{};
    if (range.step != 0) steps_of(values.data(), range, most, k.data());
    for (std::size_t j = 0; j < count; ++j)
      if ((active_word(active, (i + j) / 32) >> ((i + j) % 32) & 1u) != 0)
        set_code(codes, i + j, bits, 1 + k[j]);
  }
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_encode);

namespace {

// Finds the extremes first, so that the range needs only two logarithms.
CodeRange range_of(const float* d, const std::uint32_t* active,
                   std::size_t size, int bits) {
  float least = 0;
  float most = 0;
  bool found = false;
  for (std::size_t i = 0; i < size; ++i) {
    if (active != nullptr && (active[i / 32] >> (i % 32) & 1u) == 0) continue;
    least = found ? std::min(least, d[i]) : d[i];
    most = found ? std::max(most, d[i]) : d[i];
    found = true;
  }
  if (!found) return {};
  const auto low = static_cast<float>(log2(least));
  const auto step =
      static_cast<float>((log2(most) - double{low}) / most_code_steps(bits));
  return {low, std::max(step, 0.0f)};
}

}  // namespace

CodeRange encode_denominators(const float* d, const std::uint32_t* active,
                              std::size_t size, int bits, std::uint8_t* codes) {
  require_bits(bits);
  std::fill_n(codes, code_bytes(size, bits), std::uint8_t{0});
  const CodeRange range = range_of(d, active, size, bits);
  THINWIRE_DISPATCH(run_encode)(d, active, size, range, bits, codes);
  return range;
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
