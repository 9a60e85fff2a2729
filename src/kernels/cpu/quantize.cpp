// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/quantize.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantize.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/codes-inl.h"
#include "kernels/cpu/signs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

struct LargestWord {
  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(c + i, count);
  }

  HWY_INLINE void operator()(std::size_t w, std::uint32_t active,
                             std::size_t count) {
    zero_masked(c + w * 32, active, count);
    const Part part{c + w * 32, largest};
    for_each_part(count, part);
  }

  // Magnitudes order as integers do, with NaN above infinity.
  struct Part {
    template <class D>
    HWY_INLINE void operator()(D d, std::size_t j) const {
      const Int<D> di;
      const auto magnitude = hn::BitCast(di, hn::Abs(hn::LoadU(d, c + j)));
      hn::StoreU(hn::Max(magnitude, hn::LoadU(di, largest + j)), di,
                 largest + j);
    }

    const float* c;
    std::int32_t* largest;
  };

  float* c;
  // One per place in a word, so that no vector waits for the one before it.
  alignas(64) std::int32_t largest[32] = {};
};

struct QuantizeWord {
  HWY_INLINE void operator()(std::size_t w, std::uint32_t active,
                             std::size_t count) const {
    Codes codes;
    const Part part{*this, c + w * 32, codes};
    for_each_part(count, part);
    codes.write(words, bits, w, count);
    zero_masked(c + w * 32, active, count);  // 0 * step may be NaN
  }

  struct Part {
    template <class D>
    HWY_INLINE void operator()(D d, std::size_t j) const {
      const Int<D> di;
      const hn::Rebind<std::uint8_t, D> d8;
      const auto value = hn::LoadU(d, c + j);
      const auto limit = hn::Set(d, static_cast<float>(of.half));
      auto x = hn::Div(value, hn::Set(d, of.divisor));
      x = hn::IfThenElseZero(hn::Eq(x, x), x);  // not NaN
      x = hn::Min(hn::Max(x, hn::Neg(limit)), limit);
      const auto q = hn::NearestInt(x);
      const auto sent = hn::Mul(hn::ConvertTo(d, q), hn::Set(d, of.step));
      hn::StoreU(hn::Sub(value, sent), d, c + j);
      const auto code = hn::Add(q, hn::Set(di, of.half));
      hn::StoreU(hn::DemoteTo(d8, code), d8, codes.value + j);
    }

    const QuantizeWord& of;
    float* c;
    Codes& codes;
  };

  float* c;
  std::uint32_t* words;
  int bits;
  int half;
  float step;
  float divisor;
};

float run_quantize(float* c, int bits, std::uint32_t* words,
                   const std::uint32_t* active, std::size_t size) {
  LargestWord largest{c};
  for_each_word(size, active, largest);
  const int half = half_range(bits);
  const float step = std::bit_cast<float>(*std::max_element(
                         largest.largest, largest.largest + 32)) /
                     static_cast<float>(half);
  // All that is left where the step is 0 is below it: over infinity it is 0.
  const float divisor =
      step == 0 ? std::numeric_limits<float>::infinity() : step;
  const QuantizeWord word{c, words, bits, half, step, divisor};
  for_each_word(size, active, word);
  return step;
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_quantize);

float quantize(float* c, int bits, std::uint32_t* words,
               const std::uint32_t* active, std::size_t size) {
  require_bits(bits);
  return HWY_DYNAMIC_DISPATCH(run_quantize)(c, bits, words, active, size);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
