// SPDX-License-Identifier: Apache-2.0
// 1-bit LAMB as the reference computes it, operation by operation: norms of
// rounded squares, one fused exchange whose padding is fed back, no guards.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "optim/onebit_lamb_impl.h"

namespace thinwire::optim {

using kernels::AdamCoefficients;

namespace {

// sqrt(sum x^2) where every square is rounded to float.
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

struct DeepSpeedOnebitLamb final : OnebitLambStage {
  DeepSpeedOnebitLamb(comm::Communicator& c, const ParameterLayout& layout,
                      const OnebitLambOptions& o)
      : OnebitLambStage(c, layout, o) {
    const std::size_t world = static_cast<std::size_t>(c.size());
    const std::size_t unit = world * std::lcm(std::size_t{8}, world);
    padded_size = (layout.size() + unit - 1) / unit * unit;
    pad_momentum();
    fresh = Buffer::of<float>(layout.size());
  }

  std::size_t padded_size = 0;

  // One unit for all parameters; its padding is part of the momentum.
  [[nodiscard]] std::vector<Range> exchange_units() const override {
    return {{0, padded_size}};
  }
  void adjust(compress::CompressedAllReduceOptions& o) const override {
    o.checks_finite = false;
  }

  void pad_momentum() {
    Buffer m = Buffer::of<float>(padded_size);
    if (!adam.exp_avg().empty())
      std::memcpy(m.data(), adam.exp_avg().data(), adam.exp_avg().bytes());
    adam.exp_avg() = std::move(m);
  }

  [[nodiscard]] std::span<float> of(Buffer& values, const Parameter& p) {
    return values.as<float>().subspan(p.offset, p.size);
  }

  void initialization_step(const StepInput&, StepMeter&) override {
    if (!compresses()) return;
    the_exchange().all_reduce(adam.exp_avg().view());
    exchange->clear_errors();
  }

  void exact_update(const UpdateArrays& arrays) override {
    const auto parameters = adam.layout().parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& p = parameters[i];
      const AdamCoefficients c =
          adam.coefficients(p.group, steps, arrays.grad_scale);
      const auto m = of(adam.exp_avg(), p);
      const auto v = of(adam.exp_avg_sq(), p);
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
      if (coeff != 1) average_coeff(i, coeff);
      move(i, x, u, coeff);
    }
  }

  [[nodiscard]] static double trust(float params, float update,
                                    TrustLimits limits) {
    if (!(params > 0 && update > 0)) return 1;
    const double ratio = params / update;  // a division of floats
    return std::max(std::min(ratio, limits.max_coeff), limits.min_coeff);
  }

  void move(std::size_t i, std::span<float> x, std::span<const float> u,
            double coeff) {
    lamb_coeffs[i] = coeff;
    const std::size_t group = adam.layout().parameters()[i].group;
    add_scaled(x, static_cast<float>(-adam.learning_rate(group) * coeff), u);
  }

  void enter_compressed_stage() override {
    TwoStage::enter_compressed_stage();
    std::vector<double> all;
    for (const Parameter& p : adam.layout().parameters())
      all.push_back(rms(of(adam.exp_avg(), p)));
    scale_momenta(all);
  }

  void compressed_update(const StepInput& in, double grad_scale,
                         StepMeter& meter) override {
    const auto parameters = adam.layout().parameters();
    const Buffer previous = momentum();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& p = parameters[i];
      const auto m = of(adam.exp_avg(), p);
      kernels::momentum(
          m.data(), in.grads.subview(p.offset, p.size),
          adam.coefficients(p.group, steps, static_cast<float>(grad_scale)));
      const auto k = static_cast<float>(momentum_scales[i]);
      for (float& value : m) value *= k;
    }
    if (compresses())
      meter.compressed(the_exchange(), [&](auto& all) {
        all.all_reduce(adam.exp_avg().view());
      });
    for (std::size_t i = 0; i < parameters.size(); ++i)
      update(i, previous.as<float>().subspan(parameters[i].offset), in.params);
  }

  void update(std::size_t i, std::span<const float> m_old, View params) {
    const Parameter& p = adam.layout().parameters()[i];
    const AdamCoefficients c = adam.coefficients(p.group, steps, 1);
    const auto m = of(adam.exp_avg(), p);
    const auto k = static_cast<float>(momentum_scales[i]);
    for (float& value : m) value /= k;
    parts.multiply_by_mask(adam.exp_avg().as<float>(), {p.offset, p.size});

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
    double decayed = 1;
    if (c.decoupled_decay > 0) {
      const float plain = norm_of_rounded_squares(u);
      const auto x = params.as<float>().subspan(p.offset, p.size);
      add_scaled(u, c.decoupled_decay, x);
      decayed = std::min(
          1.0, static_cast<double>(plain / norm_of_rounded_squares(u)));
    }
    move(i, params.as<float>().subspan(p.offset, p.size), u,
         adapted_coeff(i, drift, decayed));
  }

  void save_stage(StateDict& state) const override {
    OnebitLambStage::save_stage(state);
    state.put("exp_avg_flat", adam.exp_avg().view());
  }

  // The reference forgets what it learned of the ratios in the exact stage.
  [[nodiscard]] Commit read_stage(const StateDict& state) override {
    const Commit commit = OnebitLambStage::read_stage(state);
    return [=, this] {
      commit();
      pad_momentum();
      if (frozen_at > 0) return;
      fresh = Buffer::of<float>(adam.layout().size());
      std::fill(frozen_coeffs.begin(), frozen_coeffs.end(), 0.0);
      std::fill(last_factors.begin(), last_factors.end(), 1.0);
      momentum_scales.clear();
    };
  }
};

}  // namespace

std::unique_ptr<OnebitLambStage> make_deepspeed_onebit_lamb(
    comm::Communicator& comm, const ParameterLayout& layout,
    const OnebitLambOptions& options) {
  return std::make_unique<DeepSpeedOnebitLamb>(comm, layout, options);
}

}  // namespace thinwire::optim
