// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/denominator.h"

#include <cmath>
#include <utility>

#include "core/visit_floats.h"
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

// In denominators: 1 / sqrt(1 - beta2), what one gradient alone is in Adam,
// whose own variance bounds what it can do. A frozen one does not.
std::vector<double> outlier_bounds(const Adam& adam) {
  std::vector<double> bounds;
  for (std::size_t g = 0; g < adam.num_groups(); ++g)
    bounds.push_back(1 / std::sqrt(1 - adam.group_options(g).beta2));
  return bounds;
}

}  // namespace

void Denominator::fit(std::vector<std::uint8_t> elements) {
  const auto d = values.as<float>();
  const auto m = model_.adam.exp_avg().as<float>();
  for (const std::size_t i :
       leave_out_nonfinite(d, model_.layout.compressed, elements))
    m[i] = 0;
  blocks.fit(d, elements, model_.layout, model_.settings.denom_floor,
             model_.pool);
  for (const HeavyElement& element : heavy())
    m[element.index] *= element.factor;
  momentum_.set_participation(std::move(elements));
}

void Denominator::refit(std::size_t b) {
  const Range& range = model_.block(b);
  blocks.refit(b, {at(range.offset), range.size},
               participations_of(momentum_.participation(), range),
               model_.settings.denom_floor);
}

void Denominator::guard(View grads, double grad_scale,
                        std::span<const double> chunk_squares) const {
  if (blocks.empty()) return;
  scale_heavy(grads);
  bound_outliers(grads, grad_scale, chunk_squares);
}

void Denominator::scale_heavy(View grads) const {
  visit_floats(grads, [&](auto* g) {
    for (const HeavyElement& element : heavy())
      store_rounded(to_float(g[element.index]) * element.factor,
                    g + element.index);
  });
}

// Only blocks that may hold an outlier are looked at: the norm's chunks that
// cover a block bound its own sum of squares.
void Denominator::bound_outliers(View grads, double grad_scale,
                                 std::span<const double> chunk_squares) const {
  const double squared_scale = grad_scale * grad_scale;
  const std::vector<double> bounds = outlier_bounds(model_.adam);
  model_.for_blocks([&](std::size_t b) {
    const Range& at = model_.block(b);
    double most = 0;
    for (std::size_t c = at.offset / kernels::kSumChunk;
         c <= (at.end() - 1) / kernels::kSumChunk; ++c)
      most += chunk_squares[c];
    const double bound = bounds[model_.layout.block_group[b]];
    const double limit =
        bound * model_.settings.outlier_gate * blocks.median(b);
    if (!(most * squared_scale > limit * limit)) return;
    const View own = grads.subview(at.offset, at.size);
    const double squares = kernels::sum_of_squares(own) * squared_scale;
    if (std::isfinite(squares) && squares > limit * limit)
      bound_block(own, values.as<float>().subspan(at.offset, at.size),
                  bound / grad_scale);
  });
}

}  // namespace thinwire::optim
