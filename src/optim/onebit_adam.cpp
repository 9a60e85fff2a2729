// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/onebit_adam.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "optim/checks.h"
#include "optim/low_bit_options.h"
#include "optim/two_stage.h"
#include "thinwire/compress/quantized_all_reduce.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::optim {

using compress::CompressedAllReduce;
using kernels::AdamCoefficients;

namespace {

LowBitSettings settings_of(const OnebitAdamOptions& options) {
  return low_bit_settings(
      "onebit_adam",
      fmt::format("{} variance_refresh={}", describe_freeze(options),
                  options.variance_refresh),
      options);
}

struct OnebitAdamImpl final : TwoStage {
  OnebitAdamImpl(comm::Communicator& c, const ParameterLayout& layout,
                 const OnebitAdamOptions& options)
      : TwoStage(c, layout, settings_of(options), freeze_options(options)),
        variance_refresh(options.variance_refresh) {}

  std::int64_t variance_refresh;
  std::unique_ptr<compress::QuantizedAllReduce> gradients;  // made when needed
  // Of elements that were late, by their number; with variance_refresh alone.
  std::map<std::size_t, float> first_denominators;

  void exact_update(const UpdateArrays& arrays) override {
    adam.apply(steps, arrays, pool);
  }

  void update_exact_groups(const UpdateArrays& arrays) {
    for (const GroupRange& r : parts.exact)
      adam.apply_part(steps, r.range, part_of(arrays, r.range), pool);
  }

  // Groups that stay exact travel while the others are compressed.
  void compressed_update(const StepInput& in, double grad_scale,
                         StepMeter& meter) override {
    observe_exact(in.grads);
    const auto queued = queue_sums(comm, in.grads, parts.exact,
                                   settings.exchange.bucket_elements);
    const std::vector<AdamCoefficients> c = coefficients(grad_scale);
    if (refreshes_variance())
      refresh_variance(in, c, meter);
    else
      momentum_step(in, c, meter);
    meter.waiting([&] {
      for (const comm::Work& work : queued) work.wait();
    });
    const double divisor = sum_divisor(comm, in.grads.dtype());
    update_exact_groups({.params = in.params,
                         .grads = in.grads,
                         .grad_scale = static_cast<float>(grad_scale / divisor),
                         .low_precision = in.low_precision});
  }

  // ---- variance refresh: v is corrected for its bias once, at the freeze
  [[nodiscard]] bool keeps_variance() const override {
    return variance_refresh > 0 || TwoStage::keeps_variance();
  }

  [[nodiscard]] bool refreshes_variance() const {
    return variance_refresh > 0 && (steps - frozen_at) % variance_refresh == 0;
  }

  void enter_compressed_stage() override {
    TwoStage::enter_compressed_stage();
    if (variance_refresh == 0) return;
    // A refresh takes the momentum as it is, where an exchange masks it.
    const auto m = adam.exp_avg().as<float>();
    for (std::size_t i = 0; i < m.size(); ++i)
      if (!takes_part(i)) m[i] = 0;
    const auto v = adam.exp_avg_sq().as<float>();
    for_group_ranges(pool, parts.compressed,
                     [&](Range range, std::size_t group) {
                       const float scale =
                           adam.coefficients(group, steps, 1).exp_avg_sq_scale;
                       for (std::size_t i = range.offset; i < range.end(); ++i)
                         v[i] *= scale;
                     });
  }

  // The gradient travels in 4 bits; what rounding takes from it is missing in
  // the momentum, so it joins the momentum's residuals.
  void refresh_variance(const StepInput& in,
                        std::span<const AdamCoefficients> c, StepMeter& meter) {
    keep_momentum_as_values();
    const auto copy = [&](std::size_t b, float* x) {
      const Range& at = parts.blocks.blocks()[b].values;
      kernels::convert(in.grads.subview(at.offset, at.size),
                       std::span(x, at.size));
      const float factor = c[parts.block_group[b]].grad_scale;
      for (std::size_t i = 0; i < at.size; ++i)
        x[i] = takes_part(at.offset + i) ? x[i] * factor : 0;
    };
    const auto weight = [&](std::size_t b) {
      return c[parts.block_group[b]].one_minus_beta1;
    };
    if (!compresses()) {
      pool.for_each(parts.blocks.blocks().size(), [&](std::size_t b) {
        std::vector<float> g(parts.blocks.blocks()[b].values.size);
        copy(b, g.data());
        follow(b, g.data(), in, c[parts.block_group[b]]);
      });
      return;
    }
    CompressedAllReduce& residuals = the_exchange();
    meter.compressed(the_gradient_exchange(), [&](auto& all) {
      all.run(
          copy,
          [&](std::size_t b, const float* error) {
            residuals.add_to_worker_error(b, error, weight(b));
          },
          [&](std::size_t b, const float* error) {
            residuals.add_to_server_error(b, error, weight(b));
          },
          [&](std::size_t b, const float* mean) {
            follow(b, mean, in, c[parts.block_group[b]]);
          });
    });
  }

  [[nodiscard]] compress::QuantizedAllReduce& the_gradient_exchange() {
    if (!gradients)
      gradients = std::make_unique<compress::QuantizedAllReduce>(
          comm, pool, parts.units,
          compress::QuantizedAllReduceOptions{
              .blocks = {.world_size = comm.size(),
                         .bucket_elements = settings.exchange.bucket_elements,
                         .bits = 4},
              .keeps_errors = false});
    gradients->set_active(active_mask);
    return *gradients;
  }

  // v has not moved for variance_refresh steps: it decays for all of them, but
  // only where a gradient says how far: rows of rare tokens have none in most.
  void follow(std::size_t b, const float* grad, const StepInput& in,
              AdamCoefficients c) {
    const Range& at = parts.blocks.blocks()[b].values;
    const AdamOptions group = adam.group_options(parts.block_group[b]);
    const double beta2 =
        std::pow(group.beta2, static_cast<double>(variance_refresh));
    c.grad_scale = 1;
    c.beta2 = static_cast<float>(beta2);
    c.one_minus_beta2 = static_cast<float>(1 - beta2);
    c.exp_avg_sq_scale = 1;
    float* const m = adam.exp_avg().as<float>().data() + at.offset;
    float* const v = adam.exp_avg_sq().as<float>().data() + at.offset;
    float* const d = denominator.as<float>().data() + at.offset;
    std::array<float, 1024> before;  // blocks are no longer
    std::copy_n(v, at.size, before.begin());
    kernels::moments(m, v, std::span(grad, at.size), c);
    for (std::size_t i = 0; i < at.size; ++i)
      if (grad[i] == 0) v[i] = before[i];
    kernels::denominator(v, d, at.size, c);
    block_denominators.refit(b, std::span(d, at.size),
                             participations_of(participation, at),
                             settings.denom_floor);
    keep_above_first(at);
    kernels::FrozenUpdateArrays arrays = frozen_arrays(at, in);
    arrays.exp_avg = m;
    kernels::frozen_update(arrays, c);
  }

  void begin_variance(std::size_t element, float d) override {
    if (variance_refresh == 0) return;
    adam.exp_avg_sq().as<float>()[element] = d * d;
    first_denominators[element] = d;
  }

  // Of elements that were late, no denominator falls below what it began with.
  void keep_above_first(Range at) {
    const auto d = denominator.as<float>();
    for (auto e = first_denominators.lower_bound(at.offset);
         e != first_denominators.end() && e->first < at.end(); ++e)
      d[e->first] = std::max(d[e->first], e->second);
  }

  void save_stage(StateDict& state) const override {
    if (first_denominators.empty()) return;
    std::vector<std::int64_t> elements;
    std::vector<float> values;
    for (const auto& [element, d] : first_denominators) {
      elements.push_back(static_cast<std::int64_t>(element));
      values.push_back(d);
    }
    state.put("revived_elements", elements);
    state.put("revived_denominators", values);
  }

  [[nodiscard]] Commit read_stage(const StateDict& state) override {
    const std::size_t n = adam.layout().size();
    if (state.integer("frozen_at") > 0 && keeps_variance())
      (void)state.array("exp_avg_sq", DType::kFloat32, n);
    std::map<std::size_t, float> first;
    if (state.has_array("revived_elements")) {
      const auto elements = saved_indices(state, "revived_elements", n);
      const auto values =
          state.array("revived_denominators", DType::kFloat32, elements.size())
              .as<float>();
      for (std::size_t i = 0; i < elements.size(); ++i)
        first.emplace(elements[i], values[i]);
    }
    return [=, this] { first_denominators = first; };
  }

  // ---- the reference
  // Groups that stay exact lose nothing of it; they get a gradient averaged
  // twice, by the engine and by themselves.
  void initialization_step(const StepInput& in, StepMeter& meter) override {
    const auto mean = static_cast<float>(1.0 / comm.size());
    if (!in.averaged) {
      sum(in.grads, parts.all, meter);
      for (float& g : in.grads.as<float>()) g *= mean;
    }
    observe_exact(in.grads);
    sum(in.grads, parts.exact, meter);
    const auto p = in.params.as<float>();
    std::vector<float> unmoved(p.begin(), p.end());
    update_exact_groups(
        {.params = unmoved, .grads = in.grads, .grad_scale = mean});
    exchange_zeros();
  }

  void observe_exact(ConstView grads) {
    if (observer == nullptr) return;
    for (const GroupRange& r : parts.exact)
      observer->exact(r.range, grads.subview(r.range.offset, r.range.size));
  }
};

}  // namespace

void OnebitAdamOptions::validate(const ParameterLayout& layout) const {
  settings_of(*this).validate(layout);
  validate_freeze(*this);
  require(variance_refresh >= 0, "variance_refresh", ">= 0", variance_refresh);
  require(variance_refresh == 0 || semantics == Semantics::kCorrected,
          "variance_refresh", "0 with deepspeed semantics", variance_refresh);
  if (amsgrad)
    throw Error(ErrorCode::kInvalidArgument,
                "1-bit Adam does not support AMSGrad: amsgrad must be false, "
                "got true");
}

OnebitAdam::OnebitAdam(comm::Communicator& comm, const ParameterLayout& layout,
                       const OnebitAdamOptions& options)
    : LowBitOptimizer([&] {
        options.validate(layout);
        return std::make_unique<OnebitAdamImpl>(comm, layout, options);
      }()) {}

OnebitAdam::~OnebitAdam() = default;

std::int64_t OnebitAdam::frozen_at() const noexcept {
  return static_cast<const OnebitAdamImpl&>(*impl_).frozen_at;
}

}  // namespace thinwire::optim
