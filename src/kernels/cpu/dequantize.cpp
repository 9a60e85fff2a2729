// SPDX-License-Identifier: Apache-2.0
// dequantize() and quantized_average().
#include "thinwire/kernels/quantize.h"

#include <algorithm>

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dequantize.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/codes-inl.h"
#include "kernels/cpu/signs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

struct DequantizeWord {
  HWY_INLINE void operator()(std::size_t w, std::uint32_t active,
                             std::size_t count) const {
    Codes codes;
    codes.read(q.words, bits, w, count);
    const Part part{codes, half, q.step, out + w * 32};
    for_each_part(count, part);
    zero_masked(part.out, active, count);
  }

  struct Part {
    template <class D>
    HWY_INLINE void operator()(D d, std::size_t j) const {
      const auto q = codes.at(d, j, half);
      hn::StoreU(hn::Mul(q, hn::Set(d, step)), d, out + j);
    }

    const Codes& codes;
    int half;
    float step;
    float* out;
  };

  Quantized q;
  int bits;
  int half;
  float* out;
};

void run_dequantize(Quantized q, int bits, const std::uint32_t* active,
                    float* out, std::size_t size) {
  const DequantizeWord word{q, bits, half_range(bits), out};
  for_each_word(size, active, word);
}

struct AverageWord {
  HWY_INLINE void operator()(std::size_t w, std::uint32_t active,
                             std::size_t count) const {
    const Float d;
    hn::Vec<Float> sum[32 / kLanes];
    for (auto& part : sum) part = hn::Zero(d);
    for (const Quantized& q : received) {
      Codes codes;
      codes.read(q.words, bits, w, count);
      const auto step = hn::Set(d, q.step * inverse_count);
      for (std::size_t k = 0; k < 32 / kLanes; ++k) {
        sum[k] = hn::Add(sum[k], hn::Mul(codes.at(d, k * kLanes, half), step));
      }
    }
    alignas(64) float sums[32];
    for (std::size_t k = 0; k < 32 / kLanes; ++k) {
      hn::Store(sum[k], d, sums + k * kLanes);
    }
    std::copy_n(sums, count, out + w * 32);
    zero_masked(out + w * 32, active, count);
  }

  std::span<const Quantized> received;
  int bits;
  int half;
  float inverse_count;
  float* out;
};

void run_quantized_average(std::span<const Quantized> received, int bits,
                           float inverse_count, const std::uint32_t* active,
                           float* out, std::size_t size) {
  const AverageWord word{received, bits, half_range(bits), inverse_count, out};
  for_each_word(size, active, word);
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_dequantize);
HWY_EXPORT(run_quantized_average);

void dequantize(Quantized q, int bits, const std::uint32_t* active, float* out,
                std::size_t size) {
  require_bits(bits);
  HWY_DYNAMIC_DISPATCH(run_dequantize)(q, bits, active, out, size);
}

void quantized_average(std::span<const Quantized> received, int bits,
                       float inverse_count, const std::uint32_t* active,
                       float* out, std::size_t size) {
  require_bits(bits);
  HWY_DYNAMIC_DISPATCH(run_quantized_average)
  (received, bits, inverse_count, active, out, size);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
