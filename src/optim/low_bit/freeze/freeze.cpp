// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/freeze/freeze.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "optim/saved_state.h"

namespace thinwire::optim {

std::string describe(const FreezeOptions& o) {
  return fmt::format(
      "freeze_step={} lr_warmup_steps={} total_steps={} min_freeze_step={} "
      "max_freeze_step={} freeze_ratio={:f} warmup_bits={}",
      text_of(o.step), text_of(o.lr_warmup_steps), text_of(o.total_steps),
      o.min_step, text_of(o.max_step), o.ratio, warmup_bits_of(o));
}

bool Freeze::ends_at(std::int64_t step, const CompressedMomentum& momentum) {
  const auto norm = [&] {
    Adam& adam = model_.adam;
    double total = 0;
    for (const GroupRange& r : model_.layout.compressed) {
      const double beta2 = adam.group_options(r.group).beta2;
      const ConstView v =
          adam.exp_avg_sq().view().subview(r.range.offset, r.range.size);
      total += sum_of_abs(model_.pool, v) /
               (1 - std::pow(beta2, static_cast<double>(step)));
    }
    return total;
  };
  return is_last(step, norm, momentum);
}

void Freeze::freeze(std::int64_t step, bool keeps_variance,
                    Denominator& denominator) {
  Adam& adam = model_.adam;
  Buffer& v = adam.exp_avg_sq();
  std::vector<std::uint8_t> elements = participations(
      v.as<float>(), model_.layout.compressed, model_.masks.values());
  Buffer d = keeps_variance ? Buffer::of<float>(v.size()) : Buffer();
  float* const from = v.as<float>().data();
  float* const to = keeps_variance ? d.as<float>().data() : from;
  for_group_ranges(model_.pool, model_.layout.compressed,
                   [&](Range range, std::size_t group) {
                     kernels::denominator(from + range.offset,
                                          to + range.offset, range.size,
                                          adam.coefficients(group, step, 1));
                   });
  denominator.values = keeps_variance ? std::move(d) : std::move(v);
  denominator.fit(std::move(elements));
  set_frozen(step);
  if (!keeps_variance) return;

  const auto kept = v.as<float>();
  for (const HeavyElement& element : denominator.heavy())
    kept[element.index] =
        element.factor * (element.factor * kept[element.index]);
  for (const GroupRange& r : model_.layout.compressed)
    for (std::size_t i = r.range.offset; i < r.range.end(); ++i)
      if (!std::isfinite(kept[i])) kept[i] = 0;
}

std::string Freeze::describe() const {
  return fmt::format("frozen_at {}", frozen_at());
}

void Freeze::add_to(State& state, const Denominator& denominator) const {
  FreezePoint::add_to(state);
  if (is_frozen())
    state.add_elements("denominator", Sharing::kSame, {{0, model_.size()}},
                       denominator.values.view());
}

Freeze::Saved Freeze::read(StateDict& state) const {
  Saved saved{.point = FreezePoint::read(state), .denominator = {}};
  if (saved.point.frozen_at > 0) {
    saved.denominator = take_denominators(state, model_.layout, model_.size());
    if (model_.num_blocks() > 0) (void)state.array("denominator_medians");
  } else {
    require_variance(state, model_.size());
  }
  return saved;
}

void Freeze::restore(Saved&& saved, Denominator& denominator) {
  FreezePoint::restore(std::move(saved.point));
  denominator.values = std::move(saved.denominator);
}

// Reverses freeze() for v and m. Elements that never had a gradient, or that
// are unfit, get no variance.
std::string Freeze::return_to_exact(
    std::int64_t steps, Denominator& denominator,
    const std::function<float(std::size_t)>& kept_scale) {
  Adam& adam = model_.adam;
  const bool has_kept = kept_scale != nullptr && !adam.exp_avg_sq().empty();
  if (!has_kept) adam.exp_avg_sq() = Buffer::of<float>(model_.size());
  const auto v = adam.exp_avg_sq().as<float>();
  const auto m = adam.exp_avg().as<float>();
  const Participations elements = denominator.participation();
  std::vector<float> factors(model_.size(), 1.0f);
  for (const HeavyElement& heavy : denominator.heavy())
    factors[heavy.index] = heavy.factor;
  for (const GroupRange& r : model_.layout.compressed) {
    const kernels::AdamCoefficients c = adam.coefficients(r.group, steps, 1);
    const float scale = has_kept ? kept_scale(r.group) : 1;
    for (std::size_t i = r.range.offset; i < r.range.end(); ++i) {
      const bool has_variance =
          elements.empty() || elements[i] == kTakesPart || elements[i] == kOut;
      const float unbiased =
          has_kept ? v[i] / factors[i] / factors[i] * scale
                   : variance_under(*denominator.at(i) / factors[i], c);
      v[i] = has_variance ? unbiased / c.exp_avg_sq_scale : 0;
      m[i] /= factors[i];
    }
  }
  denominator.forget();
  set_exact();
  return note_of_return(steps, !has_kept);
}

}  // namespace thinwire::optim
