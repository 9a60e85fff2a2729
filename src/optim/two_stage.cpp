// SPDX-License-Identifier: Apache-2.0
#include "optim/two_stage.h"

#include <cmath>
#include <utility>

#include "core/require.h"

namespace thinwire::optim {

void validate_freeze(std::int64_t freeze_step,
                     std::optional<std::int64_t> lr_warmup_steps,
                     std::optional<std::int64_t> total_steps,
                     std::int64_t min_freeze_step,
                     std::optional<std::int64_t> max_freeze_step,
                     double freeze_ratio, Semantics semantics) {
  const std::int64_t least = policy_of(semantics).initialization_step ? 0 : 1;
  require(freeze_step >= least || freeze_step == kAutoFreeze, "freeze_step",
          fmt::format(">= {} or kAutoFreeze (-1)", least), freeze_step);
  require(freeze_step != kAutoFreeze || semantics == Semantics::kCorrected,
          "semantics", "corrected with an automatic freeze",
          to_string(semantics));
  require(lr_warmup_steps.value_or(0) >= 0, "lr_warmup_steps", ">= 0",
          lr_warmup_steps.value_or(0));
  require(total_steps.value_or(1) >= 1, "total_steps", ">= 1",
          total_steps.value_or(1));
  require(min_freeze_step >= 1, "min_freeze_step", ">= 1", min_freeze_step);
  require(max_freeze_step.value_or(1) >= 1, "max_freeze_step", ">= 1",
          max_freeze_step.value_or(1));
  require(freeze_ratio > 0 && freeze_ratio <= 1, "freeze_ratio", "in (0, 1]",
          freeze_ratio);
}

TwoStage::TwoStage(comm::Communicator& c, const ParameterLayout& layout,
                   LowBitSettings s, const FreezeOptions& options)
    : Impl(c, layout, std::move(s)),
      freeze_step(options.freeze_step),
      freeze(options.automatic),
      initialized(!policy.initialization_step) {}

void TwoStage::take_step(const StepInput& in, StepMeter& meter,
                         StepReport& report) {
  report.phase = phase();
  if (!initialized) {
    ++steps;
    initialization_step(in, meter);
    initialized = true;
  } else if (frozen_at == 0) {
    const auto grad_scale = average_exactly(in, meter, report);
    if (!grad_scale) return;
    ++steps;
    exact_update({.params = in.params,
                  .grads = in.grads,
                  .grad_scale = *grad_scale,
                  .low_precision = in.low_precision});
    if (is_last_exact_step()) {
      enter_compressed_stage();
      frozen_at = steps;
    }
  } else {
    const auto grad_scale = clip_by_estimate(in, meter, report);
    if (!grad_scale) return;
    ++steps;
    prepare_gradients(in, *grad_scale, meter, report);
    compressed_update(in, *grad_scale, meter);
  }
}

Phase TwoStage::phase() const {
  return frozen_at == 0 ? Phase::kExact : Phase::kCompressed;
}

std::string TwoStage::describe_schedule() const {
  return fmt::format("frozen_at {}", frozen_at);
}

bool TwoStage::is_last_exact_step() {
  if (freeze_step != kAutoFreeze) return steps >= freeze_step;
  double total = 0;
  for (const GroupRange& r : parts.compressed) {
    const double beta2 = adam.group_options(r.group).beta2;
    const ConstView v =
        adam.exp_avg_sq().view().subview(r.range.offset, r.range.size);
    total +=
        sum_of_abs(pool, v) / (1 - std::pow(beta2, static_cast<double>(steps)));
  }
  return freeze.observe(total);
}

void TwoStage::enter_compressed_stage() {
  if (!policy.floors_denominator) {
    make_denominator();
    return;
  }
  std::vector<std::uint8_t> elements =
      participations(std::as_const(adam.exp_avg_sq()).as<float>(),
                     parts.compressed, parts.mask);
  make_denominator();
  fit_denominators(std::move(elements));
  if (!keeps_variance()) return;
  const auto v = adam.exp_avg_sq().as<float>();
  for (const HeavyElement& element : block_denominators.heavy())
    v[element.index] = element.factor * (element.factor * v[element.index]);
  for (const GroupRange& r : parts.compressed)
    for (std::size_t i = r.range.offset; i < r.range.end(); ++i)
      if (!std::isfinite(v[i])) v[i] = 0;
}

void TwoStage::make_denominator() {
  Buffer& v = adam.exp_avg_sq();
  Buffer d = keeps_variance() ? Buffer::of<float>(v.size()) : Buffer();
  float* const from = v.as<float>().data();
  float* const to = keeps_variance() ? d.as<float>().data() : from;
  for_group_ranges(pool, parts.compressed, [&](Range range, std::size_t group) {
    kernels::denominator(from + range.offset, to + range.offset, range.size,
                         adam.coefficients(group, steps, 1));
  });
  denominator = keeps_variance() ? std::move(d) : std::move(v);
}

void TwoStage::exchange_zeros() {
  if (!compresses()) return;
  const std::vector<float> zeros(adam.layout().size());
  the_exchange().run(
      [&](std::size_t b) {
        return kernels::SignInput{
            .values = zeros.data() + parts.blocks.blocks()[b].values.offset};
      },
      [](std::size_t, kernels::Signs) {});
  exchange->clear_errors();
}

void TwoStage::save_own(StateDict& state) const {
  state.put_integer("frozen_at", frozen_at);
  freeze.save(state);
  if (frozen_at > 0) state.put("denominator", denominator.view());
  save_stage(state);
}

LowBitOptimizer::Impl::Commit TwoStage::read_own(const StateDict& state) {
  const std::size_t n = adam.layout().size();
  const std::int64_t new_frozen_at = state.integer("frozen_at");
  auto new_freeze = std::make_shared<AutoFreeze>(freeze);
  new_freeze->load(state);
  auto d = std::make_shared<Buffer>();
  if (new_frozen_at > 0) {
    *d = saved_floats(state, "denominator", n);
    if (policy.floors_denominator && !parts.blocks.blocks().empty())
      (void)state.array("denominator_medians");
  }
  if (new_frozen_at == 0) (void)state.array("exp_avg_sq", DType::kFloat32, n);
  const Commit commit_stage = read_stage(state);
  return [=, this] {
    frozen_at = new_frozen_at;
    freeze = *new_freeze;
    denominator = std::move(*d);
    initialized = true;
    commit_stage();
  };
}

}  // namespace thinwire::optim
