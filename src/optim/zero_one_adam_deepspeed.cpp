// SPDX-License-Identifier: Apache-2.0
// 0/1 Adam as the reference computes it, operation by operation.
#include <cstring>
#include <utility>

#include "optim/zero_one_adam_impl.h"

namespace thinwire::optim {

using kernels::AdamCoefficients;

namespace {

struct DeepSpeedZeroOneAdam final : LowBitOptimizer::Impl {
  DeepSpeedZeroOneAdam(comm::Communicator& c, const ParameterLayout& layout,
                       const ZeroOneAdamOptions& o)
      : Impl(c, layout, settings_of(o)),
        var_freeze_step(o.var_freeze_step),
        first_schedule(o),
        schedule(first_schedule),
        denominator(Buffer::of<float>(layout.size())),
        accumulator(Buffer::of<float>(layout.size())),
        lrs(layout.num_groups()) {}

  std::int64_t var_freeze_step;
  ZeroOneSchedule first_schedule;
  ZeroOneSchedule schedule;
  bool initialized = false;
  bool frozen = false;
  Buffer denominator;
  Buffer accumulator;       // the updates since the last sync
  std::vector<double> lrs;  // per group, their learning rates added up

  void adjust(compress::CompressedAllReduceOptions& o) const override {
    o.checks_finite = false;
  }

  void take_step(const StepInput& in, StepMeter& meter,
                 StepReport& report) override {
    report.phase = phase();
    ++steps;
    if (!initialized) {
      initialize(meter);
      return;  // never the last step before the freeze
    }
    if (frozen) {
      local_step(in.params, in.grads);
      if (schedule.syncs(steps)) sync(in.params, meter);
      schedule.local_step_taken();
    } else if (schedule.updates_variance(steps)) {
      if (!in.averaged) exact_average.complete(in.grads, meter);
      const double divisor = in.averaged ? 1 : comm.size();
      adam.apply(steps,
                 {.params = in.params,
                  .grads = in.grads,
                  .grad_scale = static_cast<float>(1.0 / divisor)},
                 pool);
      schedule.variance_updated();
    } else {
      average(in.grads, meter);
      one_bit_step(in.params, in.grads);
    }
    if (!frozen && steps > var_freeze_step) freeze();
  }

  // Moves nothing, but tries its buffers out.
  void initialize(StepMeter& meter) {
    Buffer zeros = Buffer::of<float>(adam.layout().size());
    average(zeros.view(), meter);
    if (exchange) exchange->clear_errors();
    initialized = true;
  }

  // The residuals measured gradients until now, accumulated updates from now.
  void freeze() {
    frozen = true;
    if (exchange) exchange->clear_errors();
  }

  void average(View values, StepMeter& meter) {
    if (!compresses()) return;
    meter.compressed(the_exchange(),
                     [&](auto& all) { all.all_reduce(values); });
    multiply_by_masks(values.as<float>());
  }

  void multiply_by_masks(std::span<float> values) {
    for (const GroupRange& r : parts.all)
      parts.multiply_by_mask(values, r.range);
  }

  void one_bit_step(View params, ConstView grads) {
    update_momentum_unmasked(grads);
    set_denominator();
    for (const GroupRange& r : parts.all)
      kernels::frozen_update({.params = at(params, r),
                              .exp_avg = at(adam.exp_avg().view(), r),
                              .denominator = at(denominator.view(), r),
                              .size = r.range.size},
                             coefficients_of(r.group));
  }

  void local_step(View params, ConstView grads) {
    update_momentum_unmasked(grads);
    set_denominator();
    for (std::size_t g = 0; g < lrs.size(); ++g)
      lrs[g] += adam.learning_rate(g);
    for (const GroupRange& r : parts.all) {
      const AdamCoefficients c = coefficients_of(r.group);
      float* const p = at(params, r);
      float* const u = at(accumulator.view(), r);
      const float* const m = at(adam.exp_avg().view(), r);
      const float* const d = at(denominator.view(), r);
      for (std::size_t i = 0; i < r.range.size; ++i) {
        float update = m[i] / d[i];
        if (c.decoupled_decay > 0) update += c.decoupled_decay * p[i];
        const float step = c.minus_learning_rate * update;
        p[i] += step;
        u[i] += step;
      }
    }
  }

  void sync(View params, StepMeter& meter) {
    const auto p = params.as<float>();
    const auto b = accumulator.as<float>();
    const auto d = std::as_const(denominator).as<float>();
    for (std::size_t i = 0; i < b.size(); ++i) {
      p[i] += -b[i];
      b[i] *= d[i];
    }
    average(accumulator.view(), meter);
    const auto m = adam.exp_avg().as<float>();
    for (const GroupRange& r : parts.all) {
      const auto sum = static_cast<float>(lrs[r.group]);
      for (std::size_t i = r.range.offset; i < r.range.end(); ++i) {
        m[i] = 0.0f - b[i] / sum;
        p[i] += b[i] / d[i];
        b[i] = 0;
      }
    }
    lrs.assign(lrs.size(), 0);
  }

  void update_momentum_unmasked(ConstView grads) {
    for (const GroupRange& r : parts.all)
      kernels::momentum(at(adam.exp_avg().view(), r),
                        grads.subview(r.range.offset, r.range.size),
                        coefficients_of(r.group));
  }

  void set_denominator() {
    for (const GroupRange& r : parts.all)
      kernels::denominator(at(adam.exp_avg_sq().view(), r),
                           at(denominator.view(), r), r.range.size,
                           coefficients_of(r.group));
  }

  [[nodiscard]] AdamCoefficients coefficients_of(std::size_t group) const {
    return adam.coefficients(group, steps, 1);
  }
  [[nodiscard]] static float* at(View values, const GroupRange& r) {
    return values.as<float>().data() + r.range.offset;
  }

  [[nodiscard]] Phase phase() const override {
    if (!initialized) return Phase::kExact;
    if (frozen)
      return schedule.syncs(steps + 1) ? Phase::kCompressed : Phase::kLocal;
    return schedule.updates_variance(steps + 1) ? Phase::kExact
                                                : Phase::kCompressed;
  }

  [[nodiscard]] std::string describe_schedule() const override {
    return schedule.describe();
  }

  void save_own(StateDict& state) const override {
    schedule.save(state);
    state.put_integer("frozen", frozen ? 1 : 0);
    state.put("lrs", lrs);
    state.put("momentum_accumulator", accumulator.view());
  }

  // The reference begins its schedule anew and forgets what was accumulated.
  [[nodiscard]] Commit read_own(const StateDict& state) override {
    const bool was_frozen = state.integer("frozen") != 0;
    (void)state.array("exp_avg_sq", DType::kFloat32, adam.layout().size());
    return [=, this] {
      initialized = true;
      frozen = was_frozen;
      schedule = first_schedule;
      lrs.assign(lrs.size(), 0);
      accumulator = Buffer::of<float>(accumulator.size());
    };
  }
};

}  // namespace

std::unique_ptr<LowBitOptimizer::Impl> make_deepspeed_zero_one_adam(
    comm::Communicator& comm, const ParameterLayout& layout,
    const ZeroOneAdamOptions& options) {
  return std::make_unique<DeepSpeedZeroOneAdam>(comm, layout, options);
}

}  // namespace thinwire::optim
