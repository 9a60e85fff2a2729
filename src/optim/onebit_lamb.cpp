// SPDX-License-Identifier: Apache-2.0
// arXiv:2104.06069, Algorithm 1. docs/algorithms/onebit-lamb.md shows the same
// steps. The compressed momentum is in low_bit/momentum, and the trust ratios
// are in lamb_step.cpp.
#include "thinwire/optim/onebit_lamb.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/require.h"
#include "kernels/pooled_norm.h"
#include "optim/lamb_step.h"
#include "optim/low_bit/freeze/freeze.h"
#include "optim/low_bit/impl.h"
#include "optim/saved_state.h"

namespace thinwire::optim {

using kernels::AdamCoefficients;
using kernels::LambFactorSums;

namespace {

constexpr const char* kFresh = "exp_avg_sq_fresh";

// Uses a lower gate, because outliers that the other optimizers tolerate change
// the trust ratios. An outlier of 1000 times its neighbours' gradient left
// parameters ten times as far from the optimum.
LowBitSettings settings_of(const OnebitLambOptions& o) {
  LowBitSettings settings = low_bit_settings(
      "onebit_lamb",
      fmt::format(
          "{} {} coeff_beta={} factor_max={} "
          "factor_min={} factor_threshold={}",
          describe(o.freeze),
          describe(trust_limits(o, std::max<std::size_t>(1, o.groups.size()))),
          o.coeff_beta, o.factor_max, o.factor_min, o.factor_threshold),
      o);
  settings.outlier_gate = 2;
  return settings;
}

struct OnebitLambImpl final : LowBitOptimizer::Impl {
  OnebitLambImpl(comm::Communicator& comm, const ParameterLayout& layout,
                 const OnebitLambOptions& options)
      : Impl(comm, layout, settings_of(options),
             /*keeps_previous=*/true),
        freeze(model, options.freeze),
        limits(trust_limits(options, layout.num_groups())),
        first_coefficients(options, layout.parameters().size()),
        coefficients(first_coefficients),
        early(*this) {
    early_gradients = &early;
    freeze_stage = &freeze;
    lamb_coeffs = &coefficients.last;
  }

  Freeze freeze;
  std::vector<TrustLimits> limits;  // per group
  const LambCoefficients first_coefficients;
  LambCoefficients coefficients;
  std::vector<double> momentum_scales;  // k, per parameter; empty in warm-up
  // The variance that continues to adapt. It is empty during warm-up, except
  // from the load of a compressed DeepSpeed state until the first step.
  Buffer fresh;
  EarlyLowBit early;

  void take_step(const StepInput& in, StepMeter& step) override;
  [[nodiscard]] Progress progress() const override {
    return {.phase = freeze.phase(), .freeze_step = freeze.planned()};
  }
  void list_own(StateParts& parts) override;
  [[nodiscard]] Notes follow_options() override;
  [[nodiscard]] bool begins_in(StateDict& state,
                               std::string_view rule) const override;

  void warm_up(const StepInput& in, StepMeter& step);
  void begin_compression();
  void forget_fresh();
  void compressed_step(const StepInput& in, StepMeter& step);

  using Sums = std::vector<LambFactorSums>;  // per block
  [[nodiscard]] Sums average_momentum(const StepInput& in,
                                      const Coefficients& c, StepMeter& step);
  [[nodiscard]] LambFactorSums update_fresh(std::size_t b,
                                            const kernels::MomentumForm& m,
                                            const kernels::MomentumForm& m_old,
                                            View params, const Coefficients& c);
  void set_coefficients(const Sums& sums);
  void apply(std::size_t b, const StepInput& in, const Coefficients& all);
  void admit(std::span<const std::size_t> elements);
  void set_momentum_scales(std::vector<double> scales);
};

void OnebitLambImpl::take_step(const StepInput& in, StepMeter& step) {
  if (freeze.is_frozen())
    compressed_step(in, step);
  else
    warm_up(in, step);
  if (step.report().applied) verify(in.params, freeze.describe());
}

// Takes a step of the warm-up stage, which is LAMB on the averaged gradient.
// Averages the trust ratios c: c_avg = beta c_avg + (1 - beta) c.
void OnebitLambImpl::warm_up(const StepInput& in, StepMeter& step) {
  const auto average = gradients.average(in, step);
  if (!average) return;
  follow_masks();
  const std::vector<TrustRatio> ratios =
      lamb_step(adam(), ++steps, *average, limits, model.pool);
  const bool ends = freeze.ends_at(steps, momentum);
  // A frozen DeepSpeed run continues with its own coefficients.
  const bool keeps = ends && !fresh.empty();
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    coefficients.last[i] = ratios[i].value;
    if (ratios[i].computed && !keeps) coefficients.average(i, ratios[i].value);
  }
  if (ends)
    begin_compression();
  else
    forget_fresh();
}

// Continues the warm-up, so that the next freeze starts with a factor of 1 and
// with v.
void OnebitLambImpl::forget_fresh() {
  if (fresh.empty()) return;
  fresh = Buffer();
  coefficients.last_factors = first_coefficients.last_factors;
}

// Computes d from v, keeps a fresh copy of v, and scales momenta to a common
// size.
void OnebitLambImpl::begin_compression() {
  freeze.freeze(steps, /*keeps_variance=*/true, denominator);
  Buffer v = std::move(adam().exp_avg_sq());
  if (fresh.empty())
    fresh = std::move(v);
  else
    for (const HeavyElement& element : denominator.heavy())
      fresh.as<float>()[element.index] = v.as<float>()[element.index];
  std::vector<double> rms;
  for (const Parameter& p : adam().layout().parameters()) {
    const ConstView m = adam().exp_avg().view().subview(p.offset, p.size);
    rms.push_back(p.size == 0
                      ? 0
                      : std::sqrt(kernels::sum_of_squares(model.pool, m) /
                                  static_cast<double>(p.size)));
  }
  set_momentum_scales(common_size_scales(rms, adam().layout()));
  hand_over_residuals();
}

// Takes a step of the compression stage.
void OnebitLambImpl::compressed_step(const StepInput& in, StepMeter& step) {
  const auto scale = begin_compressed(in, step);
  if (!scale) return;
  const Coefficients c = model.coefficients(++steps, *scale);
  admit(prepare_gradients(in, *scale, step));
  // m = 1-bit mean of k (beta1 m + (1 - beta1) g_i), over k
  // g = (m - beta1 m_old) / (1 - beta1)
  // v_fresh = beta2 v_fresh + (1 - beta2) g^2
  const Sums sums = average_momentum(in, c, step);
  // r = max d / d_fresh, within its bounds; c = r c_avg
  set_coefficients(sums);
  // p = p - lr c (m / (1 - beta1^t) / d + wd p)
  model.for_blocks([&](std::size_t b) { apply(b, in, c); }, in.final_range);
}

// Averages the momentum. For each block that arrives, computes the fresh
// variance and the block's part of the parameter's norms.
OnebitLambImpl::Sums OnebitLambImpl::average_momentum(const StepInput& in,
                                                      const Coefficients& c,
                                                      StepMeter& step) {
  Sums sums(model.num_blocks());
  const bool is_alone = !model.compresses();  // so that values change in place
  const Buffer before =
      is_alone ? copy_of(adam().exp_avg().view()) : Buffer::of<float>(0);
  const auto previous = [&](std::size_t b) {
    if (!is_alone) return momentum.form.previous(b);
    return kernels::MomentumForm{.values = before.as<float>().data() +
                                           model.block(b).offset};
  };
  const auto take = [&](std::size_t b, const kernels::MomentumForm& m) {
    sums[b] = update_fresh(b, m, previous(b), in.params, c);
  };
  StepInput unapplied = in;
  unapplied.final_range = {};  // parameters change after all norms are known
  momentum.exchange.average(unapplied, c, take, step);
  return sums;
}

LambFactorSums OnebitLambImpl::update_fresh(std::size_t b,
                                            const kernels::MomentumForm& m,
                                            const kernels::MomentumForm& m_old,
                                            View params,
                                            const Coefficients& c) {
  const Range& at = model.block(b);
  return kernels::lamb_factor({.fresh = fresh.as<float>().data() + at.offset,
                               .denominator = denominator.at(at.offset),
                               .params = params.as<float>().data() + at.offset,
                               .exp_avg = m,
                               .previous = m_old,
                               .active = momentum.exchange.active(b),
                               .floor = denominator.blocks.floor(b),
                               .size = at.size},
                              c[model.layout.block_group[b]]);
}

// Adds the sums of blocks in the order of blocks, independently of their
// servers.
void OnebitLambImpl::set_coefficients(const Sums& sums) {
  std::vector<LambFactorSums> total(coefficients.last.size());
  for (std::size_t b = 0; b < sums.size(); ++b) {
    LambFactorSums& to = total[model.layout.block_parameter[b]];
    to.plain += sums[b].plain;
    to.update += sums[b].update;
    to.ratio = std::max(to.ratio, sums[b].ratio);
  }
  const auto parameters = adam().layout().parameters();
  for (std::size_t i = 0; i < total.size(); ++i) {
    const double drift = total[i].ratio == 0 ? 1 : total[i].ratio;
    const double decayed =
        total[i].update == 0
            ? 1
            : std::min(1.0, std::sqrt(total[i].plain / total[i].update));
    const bool has_decay =
        adam().group_options(parameters[i].group).weight_decay > 0;
    coefficients.last[i] = coefficients.corrected_average(i) *
                           coefficients.factor(i, drift, decayed, has_decay);
  }
}

void OnebitLambImpl::apply(std::size_t b, const StepInput& in,
                           const Coefficients& all) {
  const std::size_t group = model.layout.block_group[b];
  AdamCoefficients c = all[group];
  c.minus_learning_rate =
      static_cast<float>(-adam().learning_rate(group) *
                         coefficients.last[model.layout.block_parameter[b]]);
  denominator.update(b, momentum.form.current(b), in, c);
}

// Activates elements as if their variance had always been d^2.
void OnebitLambImpl::admit(std::span<const std::size_t> elements) {
  for (const std::size_t i : elements) {
    const auto& group =
        adam().group_options(adam().layout().parameter_at(i).group);
    const double seen =
        group.bias_correction
            ? 1 - std::pow(group.beta2, static_cast<double>(steps))
            : 1;
    const float d = *denominator.at(i);
    fresh.as<float>()[i] = static_cast<float>(double{d} * d * seen);
  }
}

void OnebitLambImpl::set_momentum_scales(std::vector<double> scales) {
  momentum_scales = std::move(scales);
  std::vector<float> units;
  if (!momentum_scales.empty())
    for (const std::size_t parameter : model.layout.block_parameter)
      units.push_back(static_cast<float>(momentum_scales[parameter]));
  momentum.form.set_units(std::move(units));
}

void OnebitLambImpl::list_own(StateParts& parts) {
  const bool is_frozen = freeze.list(parts, denominator);
  parts.add(
      [this](State& state) { coefficients.add_to(state); },
      [this](StateDict& state) { return coefficients.read(state); },
      [this](LambCoefficients&& saved) { coefficients = std::move(saved); });
  if (is_frozen)
    parts.values(Axis::kParameter,
                 {.name = "scaling_coeff", .sign = Sign::kNotNegative},
                 momentum_scales, coefficients.last.size());
  else
    parts.set(momentum_scales, {});
  parts.then([this] {
    // kNewParameters leaves 0 for a new parameter, whose momentum has the
    // factor 1.
    std::ranges::replace(momentum_scales, 0.0, 1.0);
    set_momentum_scales(std::move(momentum_scales));
  });
  if (parts.has(kFresh, !fresh.empty()) || (is_frozen && parts.saved()))
    parts.elements({.name = kFresh,
                    .ranges = {{0, model.size()}},
                    .sign = Sign::kNotNegative},
                   fresh);
  else
    parts.set(fresh, Buffer());
}

// Starts the averages of trust ratios, unless the state has them.
bool OnebitLambImpl::begins_in(StateDict& state, std::string_view rule) const {
  if (rule != "lamb") return false;
  Freeze::begin_in(state);
  State begun;
  first_coefficients.add_to(begun);
  put_missing(state, begun);
  return true;
}

// The fresh variance cannot replace the dropped one, because it is computed
// from 1-bit momenta.
Notes OnebitLambImpl::follow_options() {
  if (freeze.must_return(steps)) {
    const std::string note = freeze.return_to_exact(steps, denominator);
    set_momentum_scales({});
    fresh = Buffer();
    return {note};
  }
  if (!freeze.must_end(steps)) return {};
  const std::string note = freeze.note_of_end(steps);
  begin_compression();
  return {note};
}

}  // namespace

void OnebitLambOptions::validate(const ParameterLayout& layout) const {
  settings_of(*this).validate(layout);
  compression.validate();
  freeze.validate();
  require_trust_limits(*this);
  require(coeff_beta >= 0 && coeff_beta < 1, "coeff_beta", "in [0, 1)",
          coeff_beta);
  require(std::isfinite(factor_min) && factor_min > 0, "factor_min",
          "finite and > 0", factor_min);
  require(std::isfinite(factor_max) && factor_max >= factor_min, "factor_max",
          fmt::format("finite and >= factor_min = {}", factor_min), factor_max);
  require(factor_threshold >= 0 && factor_threshold <= 1, "factor_threshold",
          "in [0, 1]", factor_threshold);
}

OnebitLamb::OnebitLamb(comm::Communicator& comm, const ParameterLayout& layout,
                       const OnebitLambOptions& options)
    : LowBitOptimizer([&] {
        options.validate(layout);
        return std::make_unique<OnebitLambImpl>(comm, layout, options);
      }()) {}

OnebitLamb::~OnebitLamb() = default;

}  // namespace thinwire::optim
