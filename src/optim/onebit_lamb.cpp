// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/onebit_lamb.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "core/require.h"
#include "optim/lamb_step.h"
#include "optim/low_bit_options.h"
#include "optim/onebit_lamb_impl.h"
#include "thinwire/kernels/lamb.h"

namespace thinwire::optim {

using kernels::AdamCoefficients;
using kernels::Signs;

namespace {

struct OnebitLambImpl final : OnebitLambStage {
  OnebitLambImpl(comm::Communicator& c, const ParameterLayout& layout,
                 const OnebitLambOptions& o)
      : OnebitLambStage(c, layout, o) {}

  void exact_update(const UpdateArrays& arrays) override {
    const std::vector<TrustRatio> ratios =
        lamb_step(adam, steps, arrays, limits, pool);
    for (std::size_t i = 0; i < ratios.size(); ++i) {
      lamb_coeffs[i] = ratios[i].value;
      if (ratios[i].computed) average_coeff(i, ratios[i].value);
    }
  }

  // As the fresh one, once it is frozen.
  [[nodiscard]] bool keeps_variance() const override { return true; }

  void enter_compressed_stage() override {
    TwoStage::enter_compressed_stage();
    fresh = std::move(adam.exp_avg_sq());
    std::vector<double> rms;
    for (const Parameter& p : adam.layout().parameters()) {
      const ConstView m = adam.exp_avg().view().subview(p.offset, p.size);
      rms.push_back(p.size == 0 ? 0
                                : std::sqrt(sum_of_squares(pool, m) /
                                            static_cast<double>(p.size)));
    }
    scale_momenta(rms);
  }

  // Momentum travels scaled; as each block arrives, its fresh variance and its
  // part of the parameter's norms are formed, and then every parameter moves.
  void compressed_update(const StepInput& in, double grad_scale,
                         StepMeter& meter) override {
    const std::vector<AdamCoefficients> c = coefficients(grad_scale);
    std::vector<kernels::LambFactorSums> sums(parts.blocks.blocks().size());
    Buffer previous;
    if (compresses()) {
      exchange_momentum(in, c, sums, meter);
    } else {
      previous = momentum();
      update_momentum(in.grads, c);
      for_blocks([&](std::size_t b) {
        sums[b] = follow(b, mean_values(b), at(previous, b), in.params, c);
      });
    }
    set_coeffs(sums);
    for_blocks([&](std::size_t b) { move(b, in, c); });
    if (compresses()) keep_momentum_as_signs();
  }

  void exchange_momentum(const StepInput& in,
                         std::span<const AdamCoefficients> c,
                         std::span<kernels::LambFactorSums> sums,
                         StepMeter& meter) {
    meter.compressed(the_exchange(), [&](auto& all) {
      all.run(
          [&](std::size_t b) {
            auto input = momentum_input(b, in.grads, c[parts.block_group[b]]);
            input.factor = scale_of(b);
            return input;
          },
          [&](std::size_t b, Signs mean) {
            sums[b] = follow(b, {.signs = unscaled(mean, b)},
                             previous_momentum(b), in.params, c);
          });
    });
  }

  // What m_old is while the exchange has already overwritten it.
  [[nodiscard]] kernels::MomentumForm previous_momentum(std::size_t b) {
    if (momentum_is_signs)
      return {.signs = unscaled(exchange->previous_mean(b), b)};
    return at(adam.exp_avg(), b);
  }

  [[nodiscard]] kernels::LambFactorSums follow(
      std::size_t b, const kernels::MomentumForm& m,
      const kernels::MomentumForm& m_old, View params,
      std::span<const AdamCoefficients> c) {
    const Range& values = parts.blocks.blocks()[b].values;
    return kernels::lamb_factor(
        {.fresh = fresh.as<float>().data() + values.offset,
         .denominator = denominator.as<float>().data() + values.offset,
         .params = params.as<float>().data() + values.offset,
         .exp_avg = m,
         .previous = m_old,
         .active = active_words(b),
         .floor = block_denominators.floor(b),
         .size = values.size},
        c[parts.block_group[b]]);
  }

  // Blocks' sums are added in their order, whoever served them.
  void set_coeffs(std::span<const kernels::LambFactorSums> sums) {
    std::vector<kernels::LambFactorSums> total(lamb_coeffs.size());
    for (std::size_t b = 0; b < sums.size(); ++b) {
      kernels::LambFactorSums& to = total[parts.block_parameter[b]];
      to.plain += sums[b].plain;
      to.update += sums[b].update;
      to.ratio = std::max(to.ratio, sums[b].ratio);
    }
    for (std::size_t i = 0; i < total.size(); ++i) {
      const double drift = total[i].ratio == 0 ? 1 : total[i].ratio;
      const double decayed =
          total[i].update == 0
              ? 1
              : std::min(1.0, std::sqrt(total[i].plain / total[i].update));
      lamb_coeffs[i] = adapted_coeff(i, drift, decayed);
    }
  }

  void move(std::size_t b, const StepInput& in,
            std::span<const AdamCoefficients> all) {
    const Range& values = parts.blocks.blocks()[b].values;
    const std::size_t group = parts.block_group[b];
    AdamCoefficients c = all[group];
    c.minus_learning_rate = static_cast<float>(
        -adam.learning_rate(group) * lamb_coeffs[parts.block_parameter[b]]);
    kernels::FrozenUpdateArrays arrays = frozen_arrays(values, in);
    if (compresses()) {
      kernels::sign_update(mean_momentum(b), active_words(b), arrays, c);
    } else {
      arrays.exp_avg = mean_values(b).values;
      kernels::frozen_update(arrays, c);
    }
  }

  void for_blocks(const std::function<void(std::size_t)>& body) {
    pool.for_each(parts.blocks.blocks().size(), body);
  }

  [[nodiscard]] kernels::MomentumForm at(const Buffer& values,
                                         std::size_t b) const {
    return {.values = values.as<float>().data() +
                      parts.blocks.blocks()[b].values.offset};
  }
  [[nodiscard]] kernels::MomentumForm mean_values(std::size_t b) const {
    return at(adam.exp_avg(), b);
  }

  [[nodiscard]] float scale_of(std::size_t b) const {
    return static_cast<float>(momentum_scales[parts.block_parameter[b]]);
  }
  [[nodiscard]] Signs unscaled(Signs mean, std::size_t b) const {
    return {mean.words, mean.scale / scale_of(b)};
  }
  [[nodiscard]] Signs mean_momentum(std::size_t b) const override {
    return unscaled(exchange->mean(b), b);
  }

  void adjust(compress::CompressedAllReduceOptions& o) const override {
    o.keeps_previous = true;
  }

  // As if its variance had been d^2 from the start.
  void begin_variance(std::size_t element, float d) override {
    const auto& group =
        adam.group_options(adam.layout().parameter_at(element).group);
    const double seen =
        group.bias_correction
            ? 1 - std::pow(group.beta2, static_cast<double>(steps))
            : 1;
    fresh.as<float>()[element] = static_cast<float>(double{d} * d * seen);
  }

  [[nodiscard]] Commit read_stage(const StateDict& state) override {
    if (state.integer("frozen_at") > 0) (void)state.array("scaling_coeff");
    return OnebitLambStage::read_stage(state);
  }
};

}  // namespace

// An outlier that the others do not mind moves the trust ratios: 1000 times its
// neighbours' gradients, it left them ten times as far from the optimum.
LowBitSettings settings_of(const OnebitLambOptions& o) {
  LowBitSettings settings = low_bit_settings(
      "onebit_lamb",
      fmt::format(
          "{} {} coeff_beta={} factor_max={} "
          "factor_min={} factor_threshold={}",
          describe_freeze(o),
          describe(trust_limits(o, std::max<std::size_t>(1, o.groups.size()))),
          o.coeff_beta, o.factor_max, o.factor_min, o.factor_threshold),
      o);
  settings.outlier_gate = 2;
  return settings;
}

void OnebitLambOptions::validate(const ParameterLayout& layout) const {
  settings_of(*this).validate(layout);
  validate_freeze(*this);
  require(!amsgrad, "amsgrad",
          "false (1-bit LAMB does not support it: its variance is frozen)",
          amsgrad);
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
    : LowBitOptimizer([&]() -> std::unique_ptr<Impl> {
        options.validate(layout);
        if (options.semantics == Semantics::kDeepSpeed)
          return make_deepspeed_onebit_lamb(comm, layout, options);
        return std::make_unique<OnebitLambImpl>(comm, layout, options);
      }()) {}

OnebitLamb::~OnebitLamb() = default;

std::int64_t OnebitLamb::frozen_at() const noexcept {
  return static_cast<const OnebitLambStage&>(*impl_).frozen_at;
}

std::vector<double> OnebitLamb::lamb_coeffs() const {
  return static_cast<const OnebitLambStage&>(*impl_).lamb_coeffs;
}

}  // namespace thinwire::optim
