// SPDX-License-Identifier: Apache-2.0
// Reproduces DeepSpeed's 0/1 Adam operation by operation.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "deepspeed/low_bit.h"
#include "optim/saved_state.h"
#include "optim/zero_one_schedule.h"

namespace thinwire::deepspeed {

using kernels::AdamCoefficients;
using optim::GroupRange;
using optim::Phase;
using optim::StepInput;
using optim::StepMeter;

namespace {

// Removes the run's length, which DeepSpeed does not know.
optim::ZeroOneAdamOptions without_length(optim::ZeroOneAdamOptions options) {
  options.total_steps.reset();
  return options;
}

optim::ZeroOneStages stages_of(const optim::ZeroOneAdamOptions& options) {
  return optim::zero_one_stages_of(without_length(options));
}

std::string describe(const optim::ZeroOneStages& s) {
  return fmt::format(
      "var_freeze_step={} var_update_scaler={} local_step_scaler={} "
      "local_step_clipper={}",
      s.var_freeze_step, s.var_update_scaler, s.local_step_scaler,
      s.local_step_clipper);
}

struct ZeroOneAdamImpl final : LowBitOptimizer::Impl {
  ZeroOneAdamImpl(comm::Communicator& comm, const ParameterLayout& layout,
                  const optim::ZeroOneAdamOptions& o)
      : Impl(comm, layout,
             settings_of("deepspeed zero_one_adam", describe(stages_of(o)),
                         without_length(o))),
        var_freeze_step(stages_of(o).var_freeze_step),
        first_schedule(without_length(o)),
        schedule(first_schedule),
        denominator(Buffer::of<float>(layout.size())),
        accumulator(Buffer::of<float>(layout.size())),
        lrs(layout.num_groups()) {}

  std::int64_t var_freeze_step;
  optim::ZeroOneSchedule first_schedule;
  optim::ZeroOneSchedule schedule;
  bool frozen = false;
  Buffer denominator;
  Buffer accumulator;       // the updates since the last sync
  std::vector<double> lrs;  // per group, sum of learning rates

  void take_step(const StepInput& in, bool averaged, StepMeter& step) override {
    if (!initialized) {
      initialize(step);
      return;  // this is never the last step before the freeze
    }
    if (frozen) {
      local_step(in.params, in.grads);
      if (schedule.syncs(steps)) sync(in.params, step);
      schedule.local_step_taken();
    } else if (schedule.updates_variance(steps)) {
      if (!averaged) sum(in.grads, step);
      const double divisor = averaged ? 1 : model.comm.size();
      adam().apply(steps,
                   {.params = in.params,
                    .grads = in.grads,
                    .grad_scale = static_cast<float>(1.0 / divisor)},
                   model.pool);
      schedule.variance_updated();
    } else {
      average_in_one_bit(in.grads, step);
      one_bit_step(in.params, in.grads);
    }
    if (!frozen && steps > var_freeze_step) freeze();
  }

  // Exercises the buffers without changing parameters.
  void initialize(StepMeter& step) {
    Buffer zeros = Buffer::of<float>(model.size());
    average_in_one_bit(zeros.view(), step);
    clear_residuals();
  }

  // Clears the residuals, which belong to gradients, because accumulated
  // updates are exchanged from now on.
  void freeze() {
    frozen = true;
    clear_residuals();
  }

  void average_in_one_bit(View values, StepMeter& step) {
    if (!model.compresses()) return;
    step.adding_waits_of(
        exchange(), [&](auto& all) { all.all_reduce(values.as<float>()); });
    multiply_by_mask(values.as<float>(), {0, model.size()});
  }

  void one_bit_step(View params, ConstView grads) {
    update_momentum_unmasked(grads);
    make_denominator(model.layout.all, denominator);
    for (const GroupRange& r : model.layout.all)
      kernels::frozen_update({.params = at(params, r),
                              .exp_avg = at(adam().exp_avg().view(), r),
                              .denominator = at(denominator.view(), r),
                              .size = r.range.size},
                             coefficients_of(r.group));
  }

  void local_step(View params, ConstView grads) {
    update_momentum_unmasked(grads);
    make_denominator(model.layout.all, denominator);
    for (std::size_t g = 0; g < lrs.size(); ++g)
      lrs[g] += adam().learning_rate(g);
    for (const GroupRange& r : model.layout.all) {
      const AdamCoefficients c = coefficients_of(r.group);
      float* const p = at(params, r);
      float* const u = at(accumulator.view(), r);
      const float* const m = at(adam().exp_avg().view(), r);
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

  void sync(View params, StepMeter& step) {
    const auto p = params.as<float>();
    const auto b = accumulator.as<float>();
    const auto d = std::as_const(denominator).as<float>();
    for (std::size_t i = 0; i < b.size(); ++i) {
      p[i] += -b[i];
      b[i] *= d[i];
    }
    average_in_one_bit(accumulator.view(), step);
    const auto m = adam().exp_avg().as<float>();
    for (const GroupRange& r : model.layout.all) {
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
    for (const GroupRange& r : model.layout.all)
      kernels::momentum(at(adam().exp_avg().view(), r),
                        grads.subview(r.range.offset, r.range.size),
                        coefficients_of(r.group));
  }

  [[nodiscard]] AdamCoefficients coefficients_of(std::size_t group) const {
    return model.adam.coefficients(group, steps, 1);
  }
  [[nodiscard]] static float* at(View values, const GroupRange& r) {
    return values.as<float>().data() + r.range.offset;
  }

  [[nodiscard]] optim::Progress progress() const override {
    return {.phase = phase(), .freeze_step = var_freeze_step};
  }
  [[nodiscard]] Phase phase() const {
    if (!initialized) return Phase::kExact;
    if (frozen)
      return schedule.syncs(steps + 1) ? Phase::kCompressed : Phase::kLocal;
    return schedule.updates_variance(steps + 1) ? Phase::kExact
                                                : Phase::kCompressed;
  }

  void add_own(optim::State& state) const override {
    optim::StateParts parts(state);
    optim::ZeroOneSchedule(schedule).list(parts);
    state.common.put_integer("frozen", frozen ? 1 : 0);
    state.add_groups("lrs", lrs);
    state.add_free("momentum_accumulator", accumulator.view());
  }

  void complete(StateDict& /*state*/) const override {}

  // Never true in the initialization step.
  [[nodiscard]] bool is_in_stage_of(const StateDict& state) const override {
    const bool is_past = optim::saved_count(state, "step") >
                         std::max<std::int64_t>(1, var_freeze_step);
    return (state.integer("frozen") != 0) == is_past;
  }

  [[nodiscard]] optim::Adoption adopt_own(StateDict& state,
                                          bool goes_on) override {
    if (!goes_on) return begin_anew(state);
    optim::StateParts parts(state);
    schedule.list(parts);
    parts.values(optim::Axis::kGroup,
                 {.name = "lrs", .sign = optim::Sign::kNotNegative}, lrs,
                 lrs.size());
    parts.elements(
        {.name = "momentum_accumulator", .ranges = {{0, model.size()}}},
        accumulator);
    parts.integer({"frozen"}, frozen);
    return parts.adoption();
  }

  // DeepSpeed restarts its schedule and forgets the accumulated updates. The
  // loaded step determines the stage.
  [[nodiscard]] optim::Adoption begin_anew(const StateDict& state) {
    const bool is_past = state.integer("step") > var_freeze_step;
    return [=, this] {
      frozen = is_past;
      schedule = first_schedule;
      lrs.assign(lrs.size(), 0);
      accumulator = Buffer::of<float>(accumulator.size());
    };
  }
};

}  // namespace

void validate(const optim::ZeroOneAdamOptions& options,
              const ParameterLayout& layout) {
  require(options.compression.exchange.verify_every == 0, "verify_every",
          "0 with deepspeed semantics, whose ranks differ even after a "
          "sync",
          options.compression.exchange.verify_every);
  optim::ZeroOneAdamOptions rest = options;
  rest.var_freeze_step =
      at_least_one(options.var_freeze_step, "var_freeze_step");
  require_fp32_residuals(options.compression);
  require_exact_warmup(options.warmup_bits);
  rest.validate(layout);
}

ZeroOneAdam::ZeroOneAdam(comm::Communicator& comm,
                         const ParameterLayout& layout,
                         const optim::ZeroOneAdamOptions& options)
    : LowBitOptimizer([&] {
        validate(options, layout);
        return std::make_unique<ZeroOneAdamImpl>(comm, layout, options);
      }()) {}

}  // namespace thinwire::deepspeed
