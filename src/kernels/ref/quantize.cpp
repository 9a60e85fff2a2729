// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/checks.h"
#include "kernels/ref/floats.h"
#include "kernels/ref/signs.h"

namespace thinwire::kernels::ref {
namespace {

/// Returns L, the distance between the largest code and the code of 0.
int half_range(int bits) { return (1 << (bits - 1)) - 1; }

/// Returns the integer q that the code of element i stands for.
float value_of(const std::uint32_t* words, int bits, std::size_t i) {
  const std::size_t first = i * static_cast<std::size_t>(bits);
  const std::uint32_t code = words[first / 32] >> (first % 32);
  const std::uint32_t mask = (1u << bits) - 1;
  return static_cast<float>(static_cast<int>(code & mask) - half_range(bits));
}

float nearest(float c, float step, int bits) {
  const float x = c / step;
  if (step == 0 || std::isnan(x)) return 0;
  const auto limit = static_cast<float>(half_range(bits));
  // Adding 0 turns -0 into 0, because an integer has no sign of zero.
  return std::nearbyint(std::clamp(x, -limit, limit)) + 0.0f;
}

}  // namespace

float quantize(float* c, int bits, std::uint32_t* words,
               const std::uint32_t* active, std::size_t size) {
  require_bits(bits);
  float largest = 0;
  for (std::size_t i = 0; i < size; ++i) {
    if (masked(active, i)) c[i] = 0;
    const float magnitude = std::abs(c[i]);
    if (magnitude > largest || std::isnan(magnitude)) largest = magnitude;
  }
  const float step = largest / static_cast<float>(half_range(bits));
  std::fill_n(words, quantized_words(size, bits), 0u);
  for (std::size_t i = 0; i < size; ++i) {
    const float q = nearest(c[i], step, bits);
    const auto code =
        static_cast<std::uint32_t>(static_cast<int>(q) + half_range(bits));
    const std::size_t first = i * static_cast<std::size_t>(bits);
    words[first / 32] |= code << (first % 32);
    c[i] = masked(active, i) ? 0.0f : c[i] - q * step;
  }
  return step;
}

void dequantize(Quantized q, int bits, const std::uint32_t* active, float* out,
                std::size_t size) {
  require_bits(bits);
  for (std::size_t i = 0; i < size; ++i) {
    out[i] = masked(active, i) ? 0.0f : value_of(q.words, bits, i) * q.step;
  }
}

void quantized_average(std::span<const Quantized> received, int bits,
                       float inverse_count, const std::uint32_t* active,
                       float* out, std::size_t size) {
  require_bits(bits);
  for (std::size_t i = 0; i < size; ++i) {
    float sum = 0;
    for (const Quantized& q : received) {
      sum = sum + value_of(q.words, bits, i) * (q.step * inverse_count);
    }
    out[i] = masked(active, i) ? 0.0f : sum;
  }
}

float quantize_sum(const QuantizedSum& sum, int bits, std::uint32_t* words) {
  require_bits(bits);
  require_quantized_sum(sum);
  const std::size_t size = sum.residual.size();
  std::array<float, kMostSummed> c;
  visit_floats(sum.residual, [&](const auto* residual) {
    for (std::size_t i = 0; i < size; ++i) c[i] = to_float(residual[i]);
  });
  if (!sum.values.empty())
    add_scaled(View(c.data(), size, DType::kFloat32), sum.values, sum.factor);
  const float step = quantize(c.data(), bits, words, nullptr, size);
  visit_floats(sum.error, [&](auto* error) {
    for (std::size_t i = 0; i < size; ++i) store_rounded(c[i], error + i);
  });
  return step;
}

void add_scaled(View sum, ConstView values, float factor) {
  require_scaled(sum, values);
  auto* const total = static_cast<float*>(sum.data());
  visit_floats(values, [&](const auto* x) {
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const float scaled = to_float(x[i]) * factor;
      total[i] = scaled + total[i];
    }
  });
}

void dequantize_add(Quantized q, int bits, View values) {
  require_bits(bits);
  require_floats("values", values, values.size());
  visit_floats(values, [&](auto* x) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float sent = value_of(q.words, bits, i) * q.step;
      store_rounded(to_float(x[i]) + sent, x + i);
    }
  });
}

}  // namespace thinwire::kernels::ref
