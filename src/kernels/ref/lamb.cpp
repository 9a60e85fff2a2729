// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/lamb.h"

#include <algorithm>

#include "kernels/checks.h"
#include "kernels/ref/floats.h"
#include "kernels/ref/ordered_sum.h"
#include "kernels/ref/signs.h"

namespace thinwire::kernels::ref {
namespace {

template <class G>
void moments_of(const AdamArrays& arrays, const G* grads,
                const AdamCoefficients& c, std::size_t first_chunk,
                LambSums* sums) {
  const std::size_t size = arrays.grads.size();
  std::size_t i = 0;
  for (std::size_t end = std::min(first_chunk, size); i < size;
       end = std::min(end + kSumChunk, size)) {
    OrderedSum params;
    OrderedSum update;
    for (; i < end; ++i) {
      const float p = arrays.params[i];
      float g = to_float(grads[i]) * c.grad_scale;
      if (c.l2_decay != 0) g = g + c.l2_decay * p;
      const float m = arrays.exp_avg[i] * c.beta1 + c.one_minus_beta1 * g;
      const float v = next_variance(arrays.exp_avg_sq[i], g, c);
      arrays.exp_avg[i] = m;
      arrays.exp_avg_sq[i] = v;
      params.add_square(p);
      update.add_square(update_of(p, m, next_denominator(v, c), c));
    }
    *sums++ = {params.total(), update.total()};
  }
}

float momentum_of(const MomentumForm& form, std::size_t i) {
  return form.values != nullptr ? form.values[i] : value_of(form.signs, i);
}

}  // namespace

void lamb_moments(const AdamArrays& arrays, const AdamCoefficients& c,
                  std::size_t first_chunk, std::span<LambSums> sums) {
  require_lamb_sums(arrays.grads, first_chunk, sums.size());
  visit_floats(arrays.grads, [&](const auto* g) {
    moments_of(arrays, g, c, first_chunk, sums.data());
  });
}

void lamb_update(const AdamArrays& arrays, const AdamCoefficients& c) {
  const std::size_t size = arrays.grads.size();
  require_low_precision(arrays.low_precision, size);
  for (std::size_t i = 0; i < size; ++i) {
    const float d = next_denominator(arrays.exp_avg_sq[i], c);
    arrays.params[i] = next_param(arrays.params[i], arrays.exp_avg[i], d, c);
    store_low_precision(arrays.low_precision, i, arrays.params[i]);
  }
}

LambFactorSums lamb_factor(const LambFactorArrays& a,
                           const AdamCoefficients& c) {
  require_momentum("exp_avg", a.exp_avg, a.size);
  require_momentum("previous", a.previous, a.size);
  LambFactorSums sums;
  for_each_chunk(a.size, [&](std::size_t begin, std::size_t end) {
    OrderedSum plain;
    OrderedSum update;
    for (std::size_t i = begin; i < end; ++i) {
      const bool off = masked(a.active, i);
      const float m = off ? 0.0f : momentum_of(a.exp_avg, i);
      const float previous = off ? 0.0f : momentum_of(a.previous, i);
      const float g = (m - c.beta1 * previous) / c.one_minus_beta1;
      a.fresh[i] = next_variance(a.fresh[i], g, c);
      const float d = a.denominator[i];
      const float ratio =
          d / std::max(next_denominator(a.fresh[i], c), a.floor);
      if (!off && ratio > sums.ratio) sums.ratio = ratio;
      if (c.decoupled_decay == 0) continue;
      const float u = (m * c.exp_avg_scale) / d;
      plain.add_square(u);
      update.add_square(u + c.decoupled_decay * a.params[i]);
    }
    sums.plain += plain.total();
    sums.update += update.total();
  });
  return sums;
}

}  // namespace thinwire::kernels::ref
