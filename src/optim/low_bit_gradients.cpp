// SPDX-License-Identifier: Apache-2.0
// Who takes part in a compressed step, and what is done to gradients so that no
// element of a block spoils it for the others.
#include <algorithm>
#include <bit>
#include <cmath>

#include "core/visit_floats.h"
#include "optim/low_bit.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::optim {

namespace {

// |g| <= bound * d.
void bound_block(View grads, std::span<const float> d, double bound) {
  visit_floats(grads, [&](auto* g) {
    for (std::size_t i = 0; i < d.size(); ++i) {
      const auto most = static_cast<float>(bound * d[i]);
      const float value = to_float(g[i]);
      if (std::abs(value) > most)
        store_rounded(std::copysign(most, value), g + i);
    }
  });
}

}  // namespace

void LowBitOptimizer::Impl::fit_denominators(
    std::vector<std::uint8_t> elements) {
  const auto d = denominator.as<float>();
  const auto m = adam.exp_avg().as<float>();
  for (const std::size_t i : leave_out_nonfinite(d, parts.compressed, elements))
    m[i] = 0;
  block_denominators.fit(d, elements, parts, settings.denom_floor, pool);
  for (const HeavyElement& element : block_denominators.heavy())
    m[element.index] *= element.factor;
  set_participation(std::move(elements));
}

void LowBitOptimizer::Impl::set_participation(
    std::vector<std::uint8_t> elements) {
  participation = std::move(elements);
  late = LateElements(parts.blocks, participation);
  num_masked = participation.size() -
               static_cast<std::size_t>(std::count(
                   participation.begin(), participation.end(), kTakesPart));
  active_mask = participation.empty()
                    ? compress::ActiveMask()
                    : compress::ActiveMask(parts.blocks, [&](std::size_t i) {
                        return takes_part(i);
                      });
  if (exchange) exchange->set_active(active_mask);
}

const std::uint32_t* LowBitOptimizer::Impl::active_words(
    std::size_t block) const {
  return active_mask.words(parts.blocks, block);
}

void LowBitOptimizer::Impl::prepare_gradients(const StepInput& in,
                                              double grad_scale,
                                              StepMeter& meter,
                                              StepReport& report) {
  if (late_ones_arrived) revive_late_elements(meter, report);
  scale_heavy_elements(in.grads);
  bound_outliers(in.grads, grad_scale);
}

void LowBitOptimizer::Impl::prepare_gradients_locally(const StepInput& in,
                                                      double grad_scale) {
  if (late.look_at(in.grads, pool)) late.remember();
  scale_heavy_elements(in.grads);
  bound_outliers(in.grads, grad_scale);
}

// Momentum becomes values under the old mask: kept as signs it would decode to
// +-scale where it is 0.
void LowBitOptimizer::Impl::revive_late_elements(StepMeter& meter,
                                                 StepReport& report) {
  keep_momentum_as_values();
  const auto m = adam.exp_avg().as<float>();
  const auto d = std::as_const(denominator).as<float>();
  for (const auto& [block, words] : late.revive(comm, meter)) {
    const Range& at = parts.blocks.blocks()[block].values;
    for (std::size_t w = 0; w < words.size(); ++w)
      for (std::uint32_t rest = words[w]; rest != 0; rest &= rest - 1) {
        const std::size_t i = at.offset + w * 32 +
                              static_cast<std::size_t>(std::countr_zero(rest));
        participation[i] = kTakesPart;
        m[i] = 0;
        begin_variance(i, d[i]);
        ++report.revived;
      }
    active_mask.add(parts.blocks, block, words);
  }
  num_masked -= report.revived;
  if (exchange) exchange->set_active(active_mask);
}

void LowBitOptimizer::Impl::scale_heavy_elements(View grads) {
  visit_floats(grads, [&](auto* g) {
    for (const HeavyElement& element : block_denominators.heavy())
      store_rounded(to_float(g[element.index]) * element.factor,
                    g + element.index);
  });
}

// Only blocks that may hold an outlier are looked at: the norm's chunks that
// cover a block bound its own sum of squares.
void LowBitOptimizer::Impl::bound_outliers(View grads, double grad_scale) {
  if (block_denominators.empty()) return;
  const auto chunks = exact_average.chunk_squares();
  const double squared_scale = grad_scale * grad_scale;
  const std::vector<double> bounds = outlier_bounds();
  pool.for_each(parts.blocks.blocks().size(), [&](std::size_t b) {
    const Range& at = parts.blocks.blocks()[b].values;
    double most = 0;
    for (std::size_t c = at.offset / kernels::kSumChunk;
         c <= (at.end() - 1) / kernels::kSumChunk; ++c)
      most += chunks[c];
    const double bound = bounds[parts.block_group[b]];
    const double limit =
        bound * settings.outlier_gate * block_denominators.median(b);
    if (!(most * squared_scale > limit * limit)) return;
    const View own = grads.subview(at.offset, at.size);
    const double squares = kernels::sum_of_squares(own) * squared_scale;
    if (std::isfinite(squares) && squares > limit * limit)
      bound_block(own, denominator.as<float>().subspan(at.offset, at.size),
                  bound / grad_scale);
  });
}

// In denominators: 1 / sqrt(1 - beta2), what one gradient alone is in Adam,
// whose own variance bounds what it can do. A frozen one does not.
std::vector<double> LowBitOptimizer::Impl::outlier_bounds() const {
  std::vector<double> bounds;
  for (std::size_t g = 0; g < adam.num_groups(); ++g)
    bounds.push_back(1 / std::sqrt(1 - adam.group_options(g).beta2));
  return bounds;
}

}  // namespace thinwire::optim
