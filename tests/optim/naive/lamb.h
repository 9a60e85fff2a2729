// SPDX-License-Identifier: Apache-2.0
// LAMB and 1-bit LAMB in plain loops: see naive.h.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "optim/naive/frozen.h"
#include "thinwire/optim/lamb.h"
#include "thinwire/optim/onebit_lamb.h"

namespace thinwire::test::naive {

/// The limits of each group's trust ratio.
struct Limits {
  double least = 0.01;
  double most = 10;
};

template <class Options>
std::vector<Limits> limits_of(const ParameterLayout& layout, const Options& o) {
  std::vector<Limits> limits;
  for (std::size_t g = 0; g < layout.num_groups(); ++g) {
    Limits own{o.min_coeff, o.max_coeff};
    if (!o.groups.empty() && o.groups[g].min_coeff)
      own.least = *o.groups[g].min_coeff;
    if (!o.groups.empty() && o.groups[g].max_coeff)
      own.most = *o.groups[g].max_coeff;
    limits.push_back(own);
  }
  return limits;
}

/// Two groups' limits: ratios of the gradients that tests use lie above the
/// first one's, and below the second one's.
template <class Options>
Options with_limits_of_groups(Options o) {
  o.groups[0].min_coeff = 0.1;
  o.groups[0].max_coeff = 0.2;
  o.groups[1].min_coeff = 20;
  o.groups[1].max_coeff = 30;
  return o;
}

/// Exact LAMB, on any gradient; what both optimizers start with.
struct Lamb {
  Setup setup;
  std::vector<Limits> limits;  ///< Per group.
  Floats params;
  std::int64_t t = 0;
  Floats m = Floats(setup.layout.size());
  Floats v = Floats(setup.layout.size());
  std::vector<optim::TrustRatio> ratios{};

  void apply(const Floats& grads, float scale) {
    ++t;
    ratios.clear();
    for (const Parameter& param : setup.layout.parameters()) {
      const Numbers k = numbers(setup.groups[param.group], t, t);
      Floats u(params.size());
      for (std::size_t i = param.offset; i < param.offset + param.size; ++i) {
        const float g = grads[i] * scale;
        m[i] = k.momentum(m[i], g);
        v[i] = k.variance(v[i], g);
        u[i] = k.update(m[i], k.denominator(v[i]), params[i]);
      }
      const Range range{param.offset, param.size};
      const double p_norm = std::sqrt(sum_of_cells(params, range));
      const double u_norm = std::sqrt(sum_of_cells(u, range));
      optim::TrustRatio r;
      if (p_norm > 0 && u_norm > 0)
        r = {std::min(std::max(p_norm / u_norm, limits[param.group].least),
                      limits[param.group].most),
             true};
      ratios.push_back(r);
      const auto step = static_cast<float>(-k.learning_rate * r.value);
      for (std::size_t i = range.offset; i < range.end(); ++i)
        params[i] = params[i] + step * u[i];
    }
  }
};

/// 1-bit LAMB with a fixed freeze. Ranks hold the same parameters after every
/// step, so there is one copy.
class OnebitLamb : public LowBit {
 public:
  OnebitLamb(int world, const ParameterLayout& layout,
             const optim::OnebitLambOptions& o, Floats start)
      : LowBit(world, layout, o, optim::warmup_bits_of(o.freeze)),
        o_(o),
        lamb_{setup_, limits_of(layout, o), std::move(start)},
        count_(layout.parameters().size()),
        frozen_(count_, 0),
        averaged_(count_, 0),
        last_factor_(count_, 1) {}

  /// False: skipped.
  bool step(const std::vector<Floats>& grads) {
    counts = {};
    lamb_.setup.groups = setup_.groups;  // learning rates may have changed
    if (lamb_.t < optim::freeze_step_of(o_.freeze)) {
      const auto mean = average(grads);
      if (!mean) return false;
      lamb_.apply(mean->sum, mean->scale);
      after_exact_step(mean->clip);
      return true;
    }
    const auto clip = gradients_.compressed(grads);
    if (clip) compressed_step(grads, *clip);
    return clip.has_value();
  }

  [[nodiscard]] const Floats& params(int /*rank*/) const {
    return lamb_.params;
  }
  std::vector<double> coeffs;  ///< r of the last step, per parameter.
  Counts counts;  ///< Of the last step, if it was a compressed one.

 private:
  void after_exact_step(double clip) {
    coeffs.clear();
    for (std::size_t l = 0; l < count_; ++l) {
      const optim::TrustRatio& r = lamb_.ratios[l];
      coeffs.push_back(r.value);
      if (!r.computed) continue;
      frozen_[l] = o_.coeff_beta * frozen_[l] + (1 - o_.coeff_beta) * r.value;
      ++averaged_[l];
    }
    if (lamb_.t == optim::freeze_step_of(o_.freeze)) freeze(clip);
  }

  void freeze(double clip) {
    divides_.emplace(setup_, lamb_.t, lamb_.m, lamb_.v, 2);
    fresh_ = lamb_.v;
    std::vector<double> rms;
    std::vector<double> group_sums(setup_.groups.size());
    double with_momentum = 0;
    for (const Parameter& p : setup_.layout.parameters()) {
      const double squares = sum_of_squares(lamb_.m, {p.offset, p.size});
      rms.push_back(
          p.size == 0 ? 0 : std::sqrt(squares / static_cast<double>(p.size)));
      group_sums[p.group] += rms.back();
      with_momentum += rms.back() > 0 ? 1 : 0;
    }
    // The mean over tensors that have a momentum: one that never had a gradient
    // does not make the others' scales smaller.
    double total = 0;
    for (const double of_group : group_sums) total += of_group;
    for (const double own : rms)
      scales_.push_back(
          static_cast<float>(own > 0 ? total / with_momentum / own : 1));
    if (!few_bits_) return;
    Floats units;
    for (std::size_t l = 0; l < count_; ++l) {
      const Parameter& p = setup_.layout.parameters()[l];
      units.resize(p.offset + p.size, scales_[l]);
    }
    bits_.inherit(*few_bits_, clip, units, divides_->ratios(),
                  divides_->active);
  }

  void compressed_step(const std::vector<Floats>& grads, double clip) {
    const std::int64_t t = ++lamb_.t;
    Floats& m = lamb_.m;
    Floats& p = lamb_.params;
    const auto parameters = setup_.layout.parameters();
    const std::vector<std::size_t> revived = divides_->revive(grads);
    for (const std::size_t i : revived) wake(i);
    std::vector<Floats> x = divides_->inputs(grads, clip);
    for (std::size_t l = 0; l < count_; ++l) {
      const Numbers k = numbers(setup_.groups[parameters[l].group], t, t);
      for (std::size_t i = parameters[l].offset;
           i < parameters[l].offset + parameters[l].size; ++i)
        for (Floats& of_rank : x)
          of_rank[i] = k.momentum(m[i], of_rank[i]) * factor_of(l);
    }
    const Floats old = m;
    m = bits_.mean(x, divides_->active);
    coeffs.clear();
    for (std::size_t l = 0; l < count_; ++l) {
      const Parameter& param = parameters[l];
      const Numbers k = numbers(setup_.groups[param.group], t, t);
      for (std::size_t i = param.offset; i < param.offset + param.size; ++i)
        m[i] = m[i] / factor_of(l);
      coeffs.push_back(frozen_coeff(l) * factor(l, k, old));
      const auto step = static_cast<float>(-k.learning_rate * coeffs.back());
      for (std::size_t i = param.offset; i < param.offset + param.size; ++i)
        p[i] = p[i] + step * k.update(m[i], divides_->denominator[i], p[i]);
    }
    counts = divides_->counts();
    counts.revived = revived.size();
  }

  // Its fresh variance says at first what its denominator says.
  void wake(std::size_t i) {
    const optim::AdamOptions& o =
        setup_.groups[setup_.layout.parameter_at(i).group];
    const double seen =
        o.bias_correction ? 1 - std::pow(o.beta2, static_cast<double>(lamb_.t))
                          : 1;
    const double d = divides_->denominator[i];
    lamb_.m[i] = 0;
    fresh_[i] = static_cast<float>(d * d * seen);
  }

  // A group of one sends nothing, so it scales nothing.
  [[nodiscard]] float factor_of(std::size_t l) const {
    return setup_.world == 1 ? 1 : scales_[l];
  }

  [[nodiscard]] double frozen_coeff(std::size_t l) const {
    return averaged_[l] == 0
               ? 1
               : frozen_[l] / (1 - std::pow(o_.coeff_beta,
                                            static_cast<double>(averaged_[l])));
  }

  double factor(std::size_t l, const Numbers& k, const Floats& old) {
    const Parameter& param = setup_.layout.parameters()[l];
    float drift = 0;
    double plain = 0;
    double update = 0;
    const Flags& active = divides_->active;
    const Floats& d = divides_->denominator;
    const std::vector<Range> all = blocks(setup_.layout);
    for (std::size_t b = 0; b < all.size(); ++b) {
      if (all[b].offset < param.offset ||
          all[b].end() > param.offset + param.size)
        continue;
      std::vector<double> plains, updates;
      for (std::size_t i = all[b].offset; i < all[b].end(); ++i) {
        const float m = lamb_.m[i];
        const float before = active[i] != 0 ? old[i] : 0;
        const float g = (m - k.beta1 * before) / k.one_minus_beta1;
        fresh_[i] = k.variance(fresh_[i], g);
        const float real =
            std::max(k.denominator(fresh_[i]), divides_->floors[b]);
        if (active[i] != 0) drift = std::max(drift, d[i] / real);
        const float u0 = (m * k.m_scale) / d[i];
        const float u = u0 + k.decay * lamb_.params[i];
        plains.push_back(double{u0} * u0);
        updates.push_back(double{u} * u);
      }
      plain += sum(plains);
      update += sum(updates);
    }
    double f = drift == 0 ? 1 : drift;
    if (k.decay > 0) {
      const double rho =
          update > 0 ? std::min(1.0, std::sqrt(plain / update)) : 1;
      f = f * rho + (1 - rho);
    }
    f = std::max(std::min(f, o_.factor_max), o_.factor_min);
    const double last = last_factor_[l];
    f = std::min(f, last * (1 + o_.factor_threshold));
    f = std::max(f, last * (1 - o_.factor_threshold));
    return last_factor_[l] = f;
  }

  optim::OnebitLambOptions o_;
  Lamb lamb_;
  std::size_t count_;
  std::vector<double> frozen_;
  std::vector<std::int64_t> averaged_;
  std::vector<double> last_factor_;
  std::vector<float> scales_;
  std::optional<Frozen> divides_;
  Floats fresh_;
};

}  // namespace thinwire::test::naive
