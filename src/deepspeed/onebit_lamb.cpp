// SPDX-License-Identifier: Apache-2.0
// Reproduces DeepSpeed's 1-bit LAMB operation by operation. Uses norms of
// rounded squares and one fused exchange whose padding is fed back, without
// guards.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "deepspeed/low_bit.h"
#include "optim/lamb_step.h"
#include "optim/low_bit/denominator/block_denominators.h"
#include "optim/saved_state.h"

namespace thinwire::deepspeed {

using kernels::AdamCoefficients;
using optim::StepInput;
using optim::StepMeter;
using optim::TrustLimits;

namespace {

// Returns sqrt(sum x^2), in which every square is rounded to float.
float norm_of_rounded_squares(std::span<const float> values) {
  double sum = 0;
  for (const float x : values) sum += static_cast<double>(x * x);
  return std::sqrt(static_cast<float>(sum));
}

double rms(std::span<const float> values) {
  if (values.empty()) return 0;
  double sum = 0;
  for (const float x : values) sum += static_cast<double>(x) * x;
  return static_cast<float>(std::sqrt(sum)) /
         static_cast<float>(std::sqrt(static_cast<double>(values.size())));
}

void add_scaled(std::span<float> to, float factor, std::span<const float> x) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += factor * x[i];
}

struct OnebitLambImpl final : LowBitOptimizer::Impl {
  OnebitLambImpl(comm::Communicator& comm, const ParameterLayout& layout,
                 const optim::OnebitLambOptions& o)
      : Impl(comm, layout,
             settings_of("deepspeed onebit_lamb",
                         fmt::format("freeze_step={} {} coeff_beta={} "
                                     "factor_max={} factor_min={} "
                                     "factor_threshold={}",
                                     planned(o.freeze),
                                     describe(optim::trust_limits(
                                         o, layout.num_groups())),
                                     o.coeff_beta, o.factor_max, o.factor_min,
                                     o.factor_threshold),
                         o)),
        freeze_step(planned(o.freeze)),
        limits(optim::trust_limits(o, layout.num_groups())),
        coefficients(o, layout.parameters().size()),
        fresh(Buffer::of<float>(layout.size())) {
    // All parameters form one unit, whose padding is part of the momentum.
    padded = padded_size(layout.size(), comm.size());
    units = {{0, padded}};
    pad_momentum();
  }

  std::int64_t freeze_step;
  std::int64_t frozen_at = 0;       // last exact step, or 0 if not frozen
  std::vector<TrustLimits> limits;  // per group
  optim::LambCoefficients coefficients;
  std::vector<double> momentum_scales;  // per parameter, from the freeze on
  Buffer fresh;                         // the variance that continues to adapt
  Buffer denominator;
  std::size_t padded = 0;  // elements of the momentum

  void take_step(const StepInput& in, bool averaged, StepMeter& step) override {
    if (!initialized) {
      initialize();
    } else if (frozen_at == 0) {
      const float mean = average(in, averaged, step);
      exact_update(optim::update_arrays(in, mean));
      if (steps >= freeze_step) freeze();
    } else {
      compressed_step(in, step);
    }
  }

  void pad_momentum() {
    Buffer m = Buffer::of<float>(padded);
    if (!adam().exp_avg().empty())
      std::memcpy(m.data(), adam().exp_avg().data(), adam().exp_avg().bytes());
    adam().exp_avg() = std::move(m);
  }

  [[nodiscard]] std::span<float> of(Buffer& values, const Parameter& p) {
    return values.as<float>().subspan(p.offset, p.size);
  }

  // Exercises the buffers with a momentum of zero, without changing parameters.
  void initialize() {
    if (!model.compresses()) return;
    exchange().all_reduce(adam().exp_avg().as<float>());
    clear_residuals();
  }

  void exact_update(const optim::UpdateArrays& arrays) {
    const auto parameters = adam().layout().parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& p = parameters[i];
      const AdamCoefficients c =
          adam().coefficients(p.group, steps, arrays.grad_scale);
      const auto m = of(adam().exp_avg(), p);
      const auto v = of(adam().exp_avg_sq(), p);
      kernels::moments(m.data(), v.data(),
                       arrays.grads.subview(p.offset, p.size), c);
      if (steps == freeze_step)
        std::copy(v.begin(), v.end(), of(fresh, p).begin());

      const auto x = arrays.params.as<float>().subspan(p.offset, p.size);
      std::vector<float> u(p.size);
      kernels::denominator(v.data(), u.data(), p.size, c);
      for (std::size_t k = 0; k < p.size; ++k) u[k] = m[k] / u[k];
      if (c.decoupled_decay > 0) add_scaled(u, c.decoupled_decay, x);
      const double coeff = trust(norm_of_rounded_squares(x),
                                 norm_of_rounded_squares(u), limits[p.group]);
      if (coeff != 1) coefficients.average(i, coeff);
      move(i, x, u, coeff);
    }
  }

  [[nodiscard]] static double trust(float params, float update,
                                    TrustLimits limits) {
    if (!(params > 0 && update > 0)) return 1;
    const double ratio = params / update;  // a division in float
    return std::max(std::min(ratio, limits.max_coeff), limits.min_coeff);
  }

  void move(std::size_t i, std::span<float> x, std::span<const float> u,
            double coeff) {
    coefficients.last[i] = coeff;
    const std::size_t group = adam().layout().parameters()[i].group;
    add_scaled(x, static_cast<float>(-adam().learning_rate(group) * coeff), u);
  }

  void set_denominator() {
    denominator = Buffer::of<float>(model.size());
    make_denominator(model.layout.compressed, denominator);
  }

  void freeze() {
    set_denominator();
    frozen_at = steps;
    std::vector<double> all;
    for (const Parameter& p : adam().layout().parameters())
      all.push_back(rms(of(adam().exp_avg(), p)));
    momentum_scales = optim::common_size_scales(all, adam().layout());
  }

  void compressed_step(const StepInput& in, StepMeter& step) {
    step.report().grad_norm_is_estimate = true;  // no norm is computed
    const auto parameters = adam().layout().parameters();
    const Buffer previous = optim::copy_of(adam().exp_avg().view());
    const auto grad_scale = static_cast<float>(1 / in.loss_scale);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& p = parameters[i];
      const auto m = of(adam().exp_avg(), p);
      kernels::momentum(m.data(), in.grads.subview(p.offset, p.size),
                        adam().coefficients(p.group, steps, grad_scale));
      const auto k = static_cast<float>(momentum_scales[i]);
      for (float& value : m) value *= k;
    }
    if (model.compresses())
      step.adding_waits_of(exchange(), [&](auto& all) {
        all.all_reduce(adam().exp_avg().as<float>());
      });
    for (std::size_t i = 0; i < parameters.size(); ++i)
      update(i, previous.as<float>().subspan(parameters[i].offset), in.params);
  }

  void update(std::size_t i, std::span<const float> m_old, View params) {
    const Parameter& p = adam().layout().parameters()[i];
    const AdamCoefficients c = adam().coefficients(p.group, steps, 1);
    const auto m = of(adam().exp_avg(), p);
    const auto k = static_cast<float>(momentum_scales[i]);
    for (float& value : m) value /= k;
    multiply_by_mask(adam().exp_avg().as<float>(), {p.offset, p.size});

    const auto v = of(fresh, p);
    const auto d = of(denominator, p);
    std::vector<float> u(p.size);
    float drift = 0;
    for (std::size_t e = 0; e < p.size; ++e) {
      const float g = (m[e] - c.beta1 * m_old[e]) / c.one_minus_beta1;
      v[e] = v[e] * c.beta2 + (c.one_minus_beta2 * g) * g;
      u[e] = m[e] / d[e];
      drift = std::max(drift, d[e] / (std::sqrt(v[e]) + c.epsilon));
    }
    const bool has_decay = adam().group_options(p.group).weight_decay > 0;
    double decayed = 1;
    if (c.decoupled_decay > 0) {
      const float plain = norm_of_rounded_squares(u);
      const auto x = params.as<float>().subspan(p.offset, p.size);
      add_scaled(u, c.decoupled_decay, x);
      decayed = std::min(
          1.0, static_cast<double>(plain / norm_of_rounded_squares(u)));
    }
    move(i, params.as<float>().subspan(p.offset, p.size), u,
         coefficients.averages[i] *
             coefficients.factor(i, drift, decayed, has_decay));
  }

  [[nodiscard]] optim::Progress progress() const override {
    return {.phase = frozen_at == 0 ? optim::Phase::kExact
                                    : optim::Phase::kCompressed,
            .freeze_step = freeze_step,
            .lamb_coeffs = coefficients.last};
  }
  void add_own(optim::State& state) const override {
    state.common.put_integer("frozen_at", frozen_at);
    coefficients.add_to(state);
    state.add_free("exp_avg_sq_fresh", fresh.view());
    state.add_free("exp_avg_flat", std::as_const(model.adam).exp_avg().view());
    if (frozen_at == 0) return;
    state.add_free("denominator", denominator.view());
    state.add_parameters("scaling_coeff", momentum_scales);
  }

  // A DeepSpeed file contains k from the first compressed step on.
  void complete(StateDict& state) const override {
    const bool has_scales = state.has_array("scaling_coeff");
    state.put_integer("frozen_at",
                      has_scales ? optim::saved_count(state, "step") : 0);
    optim::State first;
    coefficients.add_to(first);
    first.add_free("exp_avg_sq_fresh", fresh.view());
    optim::put_missing(state, first);
  }

  [[nodiscard]] bool is_past(const StateDict& state) const {
    return optim::saved_count(state, "step") >=
           std::max<std::int64_t>(2, freeze_step);
  }
  [[nodiscard]] bool is_in_stage_of(const StateDict& state) const override {
    return (optim::saved_count(state, "frozen_at") > 0) == is_past(state);
  }

  // DeepSpeed derives the stage from the loaded step, and forgets the ratios
  // learned in the warm-up stage.
  [[nodiscard]] optim::Adoption adopt_own(StateDict& state,
                                          bool goes_on) override {
    const bool is_frozen = is_past(state);
    const std::int64_t saved =
        is_frozen ? optim::saved_count(state, "frozen_at") : 0;
    const std::vector<Range> all = {{0, model.size()}};
    optim::StateParts parts(state);
    parts.set(frozen_at, std::int64_t{saved});
    parts.set(coefficients, coefficients.read(state));
    parts.set(denominator, Buffer());
    parts.set(momentum_scales, {});
    if (goes_on)
      parts.elements({.name = "exp_avg_flat", .ranges = {{0, padded}}},
                     adam().exp_avg());
    if (goes_on || is_frozen)
      parts.elements({.name = "exp_avg_sq_fresh",
                      .ranges = all,
                      .sign = optim::Sign::kNotNegative},
                     fresh);
    else
      parts.set(fresh, Buffer::of<float>(model.size()));
    if (saved > 0) {
      parts.values(optim::Axis::kParameter, {.name = "scaling_coeff"},
                   momentum_scales, coefficients.last.size());
      if (state.has_array("denominator"))
        parts.set(denominator,
                  optim::take_denominators(state, model.layout, model.size()));
    }
    if (goes_on) return parts.adoption();
    parts.then([is_frozen, saved, this] {
      pad_momentum();
      if (is_frozen && saved == 0) freeze();
      if (denominator.empty() && is_frozen) set_denominator();
      if (frozen_at > 0) return;
      std::fill(coefficients.averages.begin(), coefficients.averages.end(),
                0.0);
      std::fill(coefficients.last_factors.begin(),
                coefficients.last_factors.end(), 1.0);
    });
    return parts.adoption();
  }
};

}  // namespace

void validate(const optim::OnebitLambOptions& options,
              const ParameterLayout& layout) {
  validate_freezing(options, layout);
}

OnebitLamb::OnebitLamb(comm::Communicator& comm, const ParameterLayout& layout,
                       const optim::OnebitLambOptions& options)
    : LowBitOptimizer([&] {
        validate(options, layout);
        return std::make_unique<OnebitLambImpl>(comm, layout, options);
      }()) {}

}  // namespace thinwire::deepspeed
