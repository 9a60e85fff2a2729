// SPDX-License-Identifier: Apache-2.0
// Kernels that have no SIMD version yet.
#include "thinwire/kernels/lamb.h"
#include "thinwire/kernels/local_step.h"
#include "thinwire/kernels/quantize.h"

namespace thinwire::kernels {

void moments(float* exp_avg, float* exp_avg_sq, ConstView grads,
             const AdamCoefficients& c) {
  ref::moments(exp_avg, exp_avg_sq, grads, c);
}

float floor_denominator(float* denominator, std::size_t size, double fraction) {
  return ref::floor_denominator(denominator, size, fraction);
}

LambSums lamb_moments(const AdamArrays& arrays, const AdamCoefficients& c) {
  return ref::lamb_moments(arrays, c);
}

void lamb_update(const AdamArrays& arrays, const AdamCoefficients& c) {
  ref::lamb_update(arrays, c);
}

LambFactorSums lamb_factor(const LambFactorArrays& arrays,
                           const AdamCoefficients& c) {
  return ref::lamb_factor(arrays, c);
}

void local_step(const LocalStepArrays& arrays, float origin_scale,
                const AdamCoefficients& c) {
  ref::local_step(arrays, origin_scale, c);
}

void sync_update(Signs mean, const std::uint32_t* active,
                 const SyncArrays& arrays, float origin_scale) {
  ref::sync_update(mean, active, arrays, origin_scale);
}

float quantize(float* c, int bits, std::uint32_t* words,
               const std::uint32_t* active, std::size_t size) {
  return ref::quantize(c, bits, words, active, size);
}

void dequantize(Quantized q, int bits, const std::uint32_t* active, float* out,
                std::size_t size) {
  ref::dequantize(q, bits, active, out, size);
}

void quantized_average(std::span<const Quantized> received, int bits,
                       float inverse_count, const std::uint32_t* active,
                       float* out, std::size_t size) {
  ref::quantized_average(received, bits, inverse_count, active, out, size);
}

}  // namespace thinwire::kernels
