// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/sign_compress.h"

#include <algorithm>
#include <vector>

#include "kernels/checks.h"
#include "kernels/ref/floats.h"
#include "kernels/ref/ordered_sum.h"
#include "kernels/ref/signs.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::kernels::ref {
namespace {

/// Sets error to value(i) + error, or to 0 if masked. Returns the sum of the
/// squares.
template <class Value>
double add_to_error(Value value, float* error, const std::uint32_t* active,
                    std::size_t size) {
  double total = 0;
  for (std::size_t begin = 0; begin < size; begin += kSumChunk) {
    OrderedSum sum;
    for (std::size_t i = begin; i < std::min(begin + kSumChunk, size); ++i) {
      error[i] = masked(active, i) ? 0.0f : value(i) + error[i];
      sum.add_square(error[i]);
    }
    total += sum.total();
  }
  return total;
}

float input_value(const SignInput& input, std::size_t i) {
  if (input.values != nullptr) return input.values[i];
  if (input.grads.empty()) return 0;
  const float grad =
      visit_floats(input.grads, [i](const auto* g) { return to_float(g[i]); });
  const float m =
      input.exp_avg != nullptr ? input.exp_avg[i] : value_of(input.mean, i);
  const AdamCoefficients& c = *input.coefficients;
  const float next = next_momentum(m, grad, c);
  if (input.denominator == nullptr) return next * input.factor;
  const float d = input.denominator[i];
  const float sum = input.accumulated != nullptr ? input.accumulated[i] : 0;
  return (sum + c.minus_learning_rate * ((next * c.exp_avg_scale) / d)) * d;
}

float server_value(std::span<const Signs> received, float inverse_count,
                   std::size_t i) {
  float sum = 0;
  for (const Signs& signs : received) {
    const float term = signs.scale * inverse_count;
    sum = sum + (bit(signs.words, i) ? term : -term);
  }
  return sum;
}

/// Returns the residual e in fp32.
std::vector<float> error_in(const SignBlock& block) {
  const std::size_t size = block.residual.size();
  std::vector<float> error(size);
  visit_floats(block.residual, [&](const auto* p) {
    std::transform(p, p + size, error.begin(),
                   [](auto value) { return to_float(value); });
  });
  if (block.residual.dtype() == DType::kFloat32) {
    std::vector<std::uint32_t> unused(sign_words(size));
    sign_split(error.data(), block.scale, unused.data(), block.active, size);
  }
  return error;
}

/// Accumulates, computes the scale and splits. The block keeps c, or e if the
/// residual is rounded.
template <class Value>
float encode(Value value, const SignBlock& block) {
  require_block(block);
  const std::size_t size = block.residual.size();
  std::vector<float> c = error_in(block);
  const double sum = add_to_error(value, c.data(), block.active, size);
  const float scale = sign_scale(sum, block.num_active);
  std::vector<float> error = c;
  sign_split(error.data(), scale, block.words, block.active, size);
  const bool keeps_c = block.residual.dtype() == DType::kFloat32;
  visit_floats(block.residual, [&](auto* p) {
    for (std::size_t i = 0; i < size; ++i) {
      store_rounded(keeps_c ? c[i] : error[i], p + i);
    }
  });
  return scale;
}

}  // namespace

float sign_encode(const SignInput& input, const SignBlock& block) {
  require_input(input, block.residual.size());
  return encode([&](std::size_t i) { return input_value(input, i); }, block);
}

float sign_encode_average(std::span<const Signs> received, float inverse_count,
                          const SignBlock& block) {
  return encode(
      [&](std::size_t i) { return server_value(received, inverse_count, i); },
      block);
}

void sign_split(float* error, float scale, std::uint32_t* words,
                const std::uint32_t* active, std::size_t size) {
  std::fill_n(words, sign_words(size), 0u);
  for (std::size_t i = 0; i < size; ++i) {
    const bool positive = masked(active, i) || !(error[i] < 0.0f);
    words[i / 32] |= static_cast<std::uint32_t>(positive) << (i % 32);
    if (masked(active, i)) {
      error[i] = 0;
    } else {
      error[i] = positive ? error[i] - scale : error[i] + scale;
    }
  }
}

void sign_decode(Signs signs, const std::uint32_t* active, float* out,
                 std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    out[i] = masked(active, i) ? 0.0f : value_of(signs, i);
  }
}

void sign_update(Signs mean, const std::uint32_t* active,
                 const FrozenUpdateArrays& arrays, const AdamCoefficients& c) {
  require_low_precision(arrays.low_precision, arrays.size);
  for (std::size_t i = 0; i < arrays.size; ++i) {
    const float m = masked(active, i) ? 0.0f : value_of(mean, i);
    arrays.params[i] =
        next_param(arrays.params[i], m, arrays.denominator[i], c);
    store_low_precision(arrays.low_precision, i, arrays.params[i]);
  }
}

}  // namespace thinwire::kernels::ref
