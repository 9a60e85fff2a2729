// SPDX-License-Identifier: Apache-2.0
// arXiv:2202.06009, Algorithm 1. docs/algorithms/zero-one-adam.md shows the
// same steps. Steps after the freeze are in low_bit/momentum/local_updates.cpp.
#include "thinwire/optim/zero_one_adam.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "core/require.h"
#include "optim/checks.h"
#include "optim/low_bit/impl.h"
#include "optim/low_bit/momentum/local_updates.h"
#include "optim/saved_state.h"
#include "optim/zero_one_schedule.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::optim {

using kernels::AdamCoefficients;

namespace {

LowBitSettings settings_of(const ZeroOneAdamOptions& o) {
  return low_bit_settings(
      "zero_one_adam",
      fmt::format("total_steps={} var_freeze_step={} var_update_scaler={} "
                  "local_step_scaler={} local_step_clipper={} warmup_bits={}",
                  text_of(o.total_steps), text_of(o.var_freeze_step),
                  text_of(o.var_update_scaler), text_of(o.local_step_scaler),
                  text_of(o.local_step_clipper),
                  zero_one_stages_of(o).warmup_bits),
      o);
}

constexpr const char* kVarFreezeStep = "var_freeze_step";

// After the freeze, the ranks of a host average all gradients instead of
// pieces.
class EarlyZeroOneAdam final : public EarlyLowBit {
 public:
  using EarlyLowBit::EarlyLowBit;
  [[nodiscard]] bool reduces() const noexcept override;
};

struct ZeroOneAdamImpl final : LowBitOptimizer::Impl {
  ZeroOneAdamImpl(comm::Communicator& comm, const ParameterLayout& layout,
                  const ZeroOneAdamOptions& options)
      : Impl(comm, layout, settings_of(options)),
        plan(options.var_freeze_step,
             zero_one_stages_of(options).var_freeze_step),
        schedule(options),
        updates(model, momentum, denominator),
        early(*this) {
    early_gradients = &early;
    local_updates = &updates;
    denominator.values = Buffer::of<float>(layout.size());
  }

  StagePlan plan;  // step of the freeze
  ZeroOneSchedule schedule;
  LocalUpdates updates;  // after the freeze
  EarlyZeroOneAdam early;
  std::int64_t var_updates = 0;
  bool is_frozen = false;

  void take_step(const StepInput& in, StepMeter& step) override;
  [[nodiscard]] Progress progress() const override {
    return {.phase = next_phase(), .freeze_step = plan.step()};
  }
  [[nodiscard]] Phase next_phase() const;
  void list_own(StateParts& parts) override;
  [[nodiscard]] Notes follow_options() override;

  void variance_step(const StepInput& in, StepMeter& step);
  void one_bit_step(const StepInput& in, StepMeter& step);
  void freeze(View params);
  void frozen_step(const StepInput& in, StepMeter& step);

  // Returns whether the next step is after the freeze. After a load, the
  // caller's freeze step may name the other stage. That stage begins with the
  // next step, or after the next sync, when ranks have the same momentum.
  [[nodiscard]] bool will_be_frozen() const {
    if (!is_frozen) return steps >= plan.step();
    return !plan.names_later(steps) || !is_synchronized();
  }
  [[nodiscard]] bool is_synchronized() const {
    return updates.ranks_are_equal() &&
           !(model.compresses() && updates.momenta_differ());
  }
  void set_stage(View params);
  void return_to_variance();
  void update_variance(ConstView grads, const Coefficients& c);
  void admit(std::span<const std::size_t> elements);
};

void ZeroOneAdamImpl::take_step(const StepInput& in, StepMeter& step) {
  set_stage(in.params);
  const Phase now = phase();
  if (is_frozen)
    frozen_step(in, step);
  else if (now == Phase::kExact)
    variance_step(in, step);
  else
    one_bit_step(in, step);
  if (!step.report().applied) return;
  if (!is_frozen && steps >= plan.step()) freeze(in.params);
  if (!is_frozen || updates.ranks_are_equal())
    verify(in.params, schedule.describe());
  else
    put_off_verification();
}

// Takes a step of T_v before the freeze: g is averaged, exactly or in
// warmup_bits bits, and v is updated.
void ZeroOneAdamImpl::variance_step(const StepInput& in, StepMeter& step) {
  const auto average = gradients.average(in, step);
  if (!average) return;
  follow_masks();
  ++steps;
  ++var_updates;
  // The bias correction of v counts its updates instead of steps.
  Coefficients c = model.coefficients(steps, average->grad_scale);
  for (std::size_t g = 0; g < c.size(); ++g)
    c[g].exp_avg_sq_scale =
        adam().coefficients(g, var_updates, 1).exp_avg_sq_scale;
  // m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
  // d = max(sqrt(v^) + eps, floor)
  update_variance(average->grads, c);
  // p = p - lr (m^ / d + wd p)
  const auto apply = denominator.updates(in, c);
  model.for_blocks([&](std::size_t b) { apply(b, momentum.form.current(b)); },
                   in.final_range);
  // e_i = e_i + (1 - beta1) (g_i - its low-bit form), also for servers
  hand_over_residuals();
  schedule.variance_updated();
}

void ZeroOneAdamImpl::update_variance(ConstView grads, const Coefficients& c) {
  momentum.form.keep_as_values();
  float* const m = adam().exp_avg().as<float>().data();
  float* const v = adam().exp_avg_sq().as<float>().data();
  // Exact steps do not scale the gradients of outliers.
  for (const HeavyElement& element : denominator.heavy())
    m[element.index] /= element.factor;
  model.for_blocks([&](std::size_t b) {
    const Range& at = model.block(b);
    const AdamCoefficients& own = c[model.layout.block_group[b]];
    kernels::moments(m + at.offset, v + at.offset,
                     grads.subview(at.offset, at.size), own);
    kernels::denominator(v + at.offset, denominator.at(at.offset), at.size,
                         own);
  });
  denominator.fit(participations(adam().exp_avg_sq().as<float>(),
                                 model.layout.compressed,
                                 model.masks.values()));
}

// Takes one of the other steps before the freeze: m_i is sent in one bit, and v
// does not change.
void ZeroOneAdamImpl::one_bit_step(const StepInput& in, StepMeter& step) {
  const auto scale = begin_compressed(in, step);
  if (!scale) return;
  ++steps;
  admit(prepare_gradients(in, *scale, step));
  // m = 1-bit mean of beta1 m + (1 - beta1) g_i,  p = p - lr (m^ / d + wd p)
  const Coefficients c = model.coefficients(steps, *scale);
  momentum.exchange.average(in, c, denominator.updates(in, c), step);
}

// Clears the residuals, which are in units of momentum before the freeze and of
// learning rate times momentum after it.
void ZeroOneAdamImpl::freeze(View params) {
  is_frozen = true;
  updates.begin(params);
  adam().exp_avg_sq() = Buffer();
  momentum.exchange.clear_residuals();
}

void ZeroOneAdamImpl::set_stage(View params) {
  if (will_be_frozen() == is_frozen) return;
  if (is_frozen)
    return_to_variance();
  else
    freeze(params);
}

// Keeps denominators and outliers until the next variance step.
void ZeroOneAdamImpl::return_to_variance() {
  momentum.form.keep_as_values();
  momentum.form.set_units({});
  momentum.exchange.clear_residuals();
  updates.end();
  is_frozen = false;
  denominator.restore_variance(var_updates);
}

// Takes a local step after the freeze and, in steps of T_u, syncs. In
// hierarchical mode the ranks of a host take the same local steps.
void ZeroOneAdamImpl::frozen_step(const StepInput& in, StepMeter& step) {
  const bool syncs = phase() == Phase::kCompressed;
  if (model.host) model.host->average_all(in.grads, step);
  const auto scale =
      syncs ? gradients.clip_by_estimate(
                  in, momentum.participation.has_late(in.grads), step)
            : gradients.clip_locally(in, step);
  if (!step.report().applied) return;
  ++steps;
  if (syncs) {
    (void)prepare_gradients(in, *scale, step);
  } else if (scale) {
    momentum.participation.remember_late(in.grads);
    denominator.guard(in.grads, *scale, gradients.chunk_squares());
  }
  const Coefficients c = model.coefficients(steps, scale.value_or(1));
  updates.count(c);
  // If all learning rates were 0, nothing has moved and no sync is necessary.
  const bool moves = syncs && updates.some_group_moved();
  if (moves && model.compresses()) {
    // theta = theta + 1-bit mean of u_i,  p = theta,  m = -u d / sum lr
    updates.sync(in, c, step);
  } else {
    // m_i = beta1 m_i + (1 - beta1) g_i,  u_i = u_i - lr m_i / d,  p = theta +
    // u_i
    if (scale)
      updates.step(in, c, moves ? FinalRange() : in.final_range);
    else
      updates.leave_out();  // a gradient of this rank is not finite
    if (moves) updates.sync_alone(in.params, in.low_precision);
  }
  schedule.local_step_taken();
}

// Sets v so that its next update continues from the element's denominator.
void ZeroOneAdamImpl::admit(std::span<const std::size_t> elements) {
  for (const std::size_t i : elements) {
    const std::size_t group = adam().layout().parameter_at(i).group;
    const float d = *denominator.at(i);
    float& v = adam().exp_avg_sq().as<float>()[i];
    if (v == 0)  // otherwise the element was masked before
      v = d * d / adam().coefficients(group, var_updates, 1).exp_avg_sq_scale;
  }
}

bool EarlyZeroOneAdam::reduces() const noexcept {
  return !static_cast<const ZeroOneAdamImpl&>(impl_).will_be_frozen() &&
         EarlyLowBit::reduces();
}

Phase ZeroOneAdamImpl::next_phase() const {
  if (will_be_frozen())
    return schedule.syncs(steps + 1) ? Phase::kCompressed : Phase::kLocal;
  return schedule.updates_variance(steps + 1) ? Phase::kExact
                                              : Phase::kCompressed;
}

void ZeroOneAdamImpl::list_own(StateParts& parts) {
  plan.list(parts, kVarFreezeStep);
  schedule.list(parts);
  const std::int64_t updated = parts.count({"var_updates"}, var_updates);
  const bool frozen = parts.integer({.name = "frozen"}, is_frozen);
  if (!frozen && model.size() > 0) parts.require("exp_avg_sq");
  if (updated > 0 && model.num_blocks() > 0)
    parts.require("denominator_medians");
  if (updated > 0)
    denominator.list(parts);
  else
    parts.elements({.name = "denominator", .ranges = {{0, model.size()}}},
                   denominator.values);
  updates.list(parts, frozen);
}

Notes ZeroOneAdamImpl::follow_options() {
  if (is_frozen && plan.names_later(steps))
    return {note_of_return(kVarFreezeStep, plan.step(), steps, true)};
  if (!is_frozen && plan.names_passed(steps))
    return {note_of_end(kVarFreezeStep, plan.step(), steps)};
  return {};
}

}  // namespace

void ZeroOneAdamOptions::validate(const ParameterLayout& layout) const {
  settings_of(*this).validate(layout);
  compression.validate();
  require(total_steps.value_or(1) >= 1, "total_steps", ">= 1",
          total_steps.value_or(1));
  require_warmup_bits(warmup_bits);
  const ZeroOneStages stages = zero_one_stages_of(*this);
  require(stages.var_freeze_step >= 1, "var_freeze_step", ">= 1",
          stages.var_freeze_step);
  require(stages.var_update_scaler >= 1, "var_update_scaler", ">= 1",
          stages.var_update_scaler);
  require(stages.local_step_scaler >= 1, "local_step_scaler", ">= 1",
          stages.local_step_scaler);
  require(stages.local_step_clipper >= 1, "local_step_clipper", ">= 1",
          stages.local_step_clipper);
}

ZeroOneAdam::ZeroOneAdam(comm::Communicator& comm,
                         const ParameterLayout& layout,
                         const ZeroOneAdamOptions& options)
    : LowBitOptimizer([&] {
        options.validate(layout);
        return std::make_unique<ZeroOneAdamImpl>(comm, layout, options);
      }()) {}

ZeroOneAdam::~ZeroOneAdam() = default;

}  // namespace thinwire::optim
