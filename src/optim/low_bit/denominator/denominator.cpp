// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/denominator/denominator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/visit_floats.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::optim {

namespace {

// Scales the outliers' gradients in a block that begins at element `offset`.
void scale_heavy_of(View own, std::span<const HeavyElement> heavy,
                    std::size_t offset) {
  visit_floats(own, [&](auto* g) {
    for (const HeavyElement& element : heavy) {
      auto* const at = g + (element.index - offset);
      store_rounded(to_float(*at) * element.factor, at);
    }
  });
}

// Limits |g| to bound * d. Few elements exceed this bound. A vectorized
// comparison in float with a slightly lower bound therefore passes most groups.
void bound_block(View grads, std::span<const float> d, double bound) {
  constexpr std::size_t kAtOnce = 32;
  const auto less = static_cast<float>(bound * (1 - 0x1p-20));
  visit_floats(grads, [&](auto* g) {
    const auto apply = [&](std::size_t i) {
      const auto most = static_cast<float>(bound * d[i]);
      const float value = to_float(g[i]);
      if (std::abs(value) > most)
        store_rounded(std::copysign(most, value), g + i);
    };
    std::size_t i = 0;
    for (; i + kAtOnce <= d.size(); i += kAtOnce) {
      unsigned may_exceed = 0;
      for (std::size_t j = i; j < i + kAtOnce; ++j)
        may_exceed |= std::abs(to_float(g[j])) > less * d[j] ? 1u : 0u;
      if (may_exceed == 0) continue;
      for (std::size_t j = i; j < i + kAtOnce; ++j) apply(j);
    }
    for (; i < d.size(); ++i) apply(i);
  });
}

// Returns the bound as a multiple of the denominator: 1 / sqrt(1 - beta2). In
// Adam a single gradient cannot exceed this bound, because the gradient enters
// the variance. A frozen variance sets no such limit.
double outlier_bound(const LowBitModel& model, std::size_t b) {
  const AdamOptions& all = model.settings.adam;
  const std::size_t group = model.layout.block_group[b];
  const double beta2 = group < all.groups.size()
                           ? all.groups[group].beta2.value_or(all.beta2)
                           : all.beta2;
  return 1 / std::sqrt(1 - beta2);
}

double outlier_limit(const LowBitModel& model, const BlockDenominators& blocks,
                     std::size_t b) {
  return outlier_bound(model, b) * model.settings.outlier_gate *
         blocks.median(b);
}

// Returns an upper bound of a block's sum of squares. The bound is exact if
// gradients are pieces. If not, it sums the norm's chunks that cover the block.
double most_squares(const LowBitModel& model, std::size_t b,
                    std::span<const double> chunk_squares) {
  if (model.has_pieces_only()) return model.host->squares(b);
  const Range& at = model.block(b);
  double most = 0;
  for (std::size_t c = at.offset / kernels::kSumChunk;
       c <= (at.end() - 1) / kernels::kSumChunk; ++c)
    most += chunk_squares[c];
  return most;
}

bool may_hold_outlier(const LowBitModel& model, const BlockDenominators& blocks,
                      std::size_t b, double grad_scale,
                      std::span<const double> chunk_squares) {
  const double limit = outlier_limit(model, blocks, b);
  return most_squares(model, b, chunk_squares) * (grad_scale * grad_scale) >
         limit * limit;
}

void bound_outliers_of(const LowBitModel& model,
                       const BlockDenominators& blocks, std::size_t b, View own,
                       std::span<const float> d, double grad_scale) {
  const double limit = outlier_limit(model, blocks, b);
  const double squares =
      kernels::sum_of_squares(own) * (grad_scale * grad_scale);
  if (std::isfinite(squares) && squares > limit * limit)
    bound_block(own, d, outlier_bound(model, b) / grad_scale);
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
  momentum_.participation.set(std::move(elements));
}

bool Denominator::has_variance(std::size_t element) const {
  const Participations all = momentum_.participation.elements();
  return all.empty() || all[element] == kTakesPart || all[element] == kOut;
}

void Denominator::restore_variance(std::int64_t updates) {
  model_.adam.exp_avg_sq() = Buffer::of<float>(model_.size());
  const auto v = model_.adam.exp_avg_sq().as<float>();
  std::vector<float> factors(model_.size(), 1.0f);
  for (const HeavyElement& element : heavy())
    factors[element.index] = element.factor;
  for (const GroupRange& r : model_.layout.compressed) {
    const auto c = model_.adam.coefficients(r.group, updates, 1);
    for (std::size_t i = r.range.offset; i < r.range.end(); ++i)
      if (has_variance(i))
        v[i] = variance_under(*at(i) / factors[i], c) / c.exp_avg_sq_scale;
  }
}

void Denominator::forget() {
  values = Buffer();
  blocks = BlockDenominators();
  momentum_.participation.set({});
  momentum_.exchange.clear_residuals();
  momentum_.form.set_units({});
}

MaskChange Denominator::follow_masks() {
  MaskChange change = momentum_.participation.follow_masks();
  for (const std::size_t i : change.included)
    *at(i) = blocks.of_late(model_.block_of(i));
  blocks.forget_heavy(change.excluded);
  return change;
}

void Denominator::update(std::size_t b, const kernels::MomentumForm& m,
                         const StepInput& in,
                         const kernels::AdamCoefficients& c) const {
  const Range& at = model_.block(b);
  const kernels::FrozenUpdateArrays arrays{
      .params = in.params.as<float>().data() + at.offset,
      .exp_avg = m.values,
      .denominator = values.as<float>().data() + at.offset,
      .low_precision = part_of(in.low_precision, at),
      .size = at.size};
  if (m.values != nullptr)
    kernels::frozen_update(arrays, c);
  else
    kernels::sign_update(m.signs, momentum_.exchange.active(b), arrays, c);
}

void Denominator::guard(View grads, double grad_scale,
                        std::span<const double> chunk_squares) const {
  if (blocks.empty()) return;
  scale_heavy(model_, grads, heavy());
  const auto of_block = [this](std::size_t b, auto&) {
    const Range& at = model_.block(b);
    return values.as<float>().subspan(at.offset, at.size);
  };
  bound_outliers(model_, blocks, of_block, grads, grad_scale, chunk_squares);
}

void scale_heavy(const LowBitModel& model, View grads,
                 std::span<const HeavyElement> heavy) {
  for (const HeavyElement& element : heavy) {
    const std::size_t b = model.block_of(element.index);
    if (model.has_gradient(b))
      scale_heavy_of(model.gradient(b, grads), {&element, 1},
                     model.block(b).offset);
  }
}

// Examines only blocks that may contain an outlier.
void bound_outliers(LowBitModel& model, const BlockDenominators& blocks,
                    const BlockValues& d, View grads, double grad_scale,
                    std::span<const double> chunk_squares) {
  model.for_blocks([&](std::size_t b) {
    if (!model.has_gradient(b) ||
        !may_hold_outlier(model, blocks, b, grad_scale, chunk_squares))
      return;
    std::array<float, 1024> scratch;
    bound_outliers_of(model, blocks, b, model.gradient(b, grads), d(b, scratch),
                      grad_scale);
  });
}

void Denominator::list(StateParts& parts) {
  parts.add(
      [this](State& state) {
        state.add_elements("denominator", Sharing::kSame, {{0, model_.size()}},
                           std::as_const(values).view());
      },
      [this](StateDict& state) {
        Buffer d = take_denominators(state, model_.layout, model_.size());
        if (model_.num_blocks() > 0) (void)state.array("denominator_medians");
        return d;
      },
      [this](Buffer&& d) { values = std::move(d); });
}

}  // namespace thinwire::optim
