// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/quantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantize.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// This stands after foreach_target.h, which includes the file once per target.
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

  // Magnitudes are compared as integers, which order NaN above infinity.
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
  // One maximum per place in a word, so that no vector waits for the previous
  // one.
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
      x = hn::IfThenElseZero(hn::Eq(x, x), x);  // NaN becomes 0
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
  // If the step is 0, dividing by infinity turns all remaining values into 0.
  const float divisor =
      step == 0 ? std::numeric_limits<float>::infinity() : step;
  const QuantizeWord word{c, words, bits, half, step, divisor};
  for_each_word(size, active, word);
  return step;
}

template <class T>
struct AddScaledStep {
  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(sum + i, count);
    prefetch_ahead(values + i, count);
  }

  template <class D>
  HWY_INLINE void operator()(D d, std::size_t i) const {
    const auto scaled = hn::Mul(load(d, values + i), hn::Set(d, factor));
    store(d, hn::Add(scaled, load(d, sum + i)), sum + i);
  }

  const T* values;
  float factor;
  float* sum;
};

void run_add_scaled(float* sum, ConstView values, float factor) {
  visit_floats(values, [&]<class T>(const T* x) {
    run_vectors<AddScaledStep<T>>(values.size(), x, factor, sum);
  });
}

template <class F, class T>
struct ConvertStep {
  template <class D>
  HWY_INLINE void operator()(D d, std::size_t i) const {
    store(d, load(d, from + i), to + i);
  }

  const F* from;
  T* to;
};

// A block stays in the first-level cache from one loop to the next.
template <class E>
float quantize_sum_as(const QuantizedSum& sum, int bits, std::uint32_t* words) {
  const std::size_t size = sum.residual.size();
  alignas(64) std::array<float, kMostSummed> c;
  for_each_vector(
      size, ConvertStep<E, float>{static_cast<const E*>(sum.residual.data()),
                                  c.data()});
  if (!sum.values.empty()) run_add_scaled(c.data(), sum.values, sum.factor);
  const float step = run_quantize(c.data(), bits, words, nullptr, size);
  for_each_vector(
      size, ConvertStep<float, E>{c.data(), static_cast<E*>(sum.error.data())});
  return step;
}

float run_quantize_sum(const QuantizedSum& sum, int bits,
                       std::uint32_t* words) {
  return sum.residual.dtype() == DType::kFloat32
             ? quantize_sum_as<float>(sum, bits, words)
             : quantize_sum_as<BFloat16>(sum, bits, words);
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_quantize);
HWY_EXPORT(run_quantize_sum);
HWY_EXPORT(run_add_scaled);

float quantize(float* c, int bits, std::uint32_t* words,
               const std::uint32_t* active, std::size_t size) {
  require_bits(bits);
  return THINWIRE_DISPATCH(run_quantize)(c, bits, words, active, size);
}

float quantize_sum(const QuantizedSum& sum, int bits, std::uint32_t* words) {
  require_bits(bits);
  require_quantized_sum(sum);
  return THINWIRE_DISPATCH(run_quantize_sum)(sum, bits, words);
}

void add_scaled(View sum, ConstView values, float factor) {
  require_scaled(sum, values);
  THINWIRE_DISPATCH(run_add_scaled)
  (static_cast<float*>(sum.data()), values, factor);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
