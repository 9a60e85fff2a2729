// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/freeze/freeze.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "kernels/pooled_norm.h"
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
      total += kernels::sum_of_abs(model_.pool, v) /
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

bool Freeze::list(StateParts& parts, Denominator& denominator) {
  if (FreezePoint::list(parts) > 0) {
    denominator.list(parts);
    return true;
  }
  if (model_.size() > 0) parts.require("exp_avg_sq");
  parts.set(denominator.values, Buffer());
  return false;
}

// Reverses freeze() for v and m. Unfit elements, and elements without any
// gradient so far, get no variance.
std::string Freeze::return_to_exact(
    std::int64_t steps, Denominator& denominator,
    const std::function<float(std::size_t)>& kept_scale) {
  Adam& adam = model_.adam;
  const bool has_kept = kept_scale != nullptr && !adam.exp_avg_sq().empty();
  if (!has_kept) denominator.restore_variance(steps);
  const auto v = adam.exp_avg_sq().as<float>();
  const auto m = adam.exp_avg().as<float>();
  for (const HeavyElement& heavy : denominator.heavy()) {
    m[heavy.index] /= heavy.factor;
    if (has_kept) v[heavy.index] = v[heavy.index] / heavy.factor / heavy.factor;
  }
  if (has_kept)
    for (const GroupRange& r : model_.layout.compressed) {
      const float bias = adam.coefficients(r.group, steps, 1).exp_avg_sq_scale;
      const float scale = kept_scale(r.group);
      for (std::size_t i = r.range.offset; i < r.range.end(); ++i)
        v[i] = denominator.has_variance(i) ? v[i] * scale / bias : 0;
    }
  denominator.forget();
  set_exact();
  return note_of_return(steps, !has_kept);
}

}  // namespace thinwire::optim
