// SPDX-License-Identifier: Apache-2.0
// Reproduces DeepSpeed's 1-bit Adam operation by operation.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "deepspeed/low_bit.h"
#include "optim/low_bit/denominator/block_denominators.h"
#include "optim/low_bit/gradients/local_gradients.h"
#include "optim/saved_state.h"

namespace thinwire::deepspeed {

using optim::Coefficients;
using optim::GroupRange;
using optim::StepInput;
using optim::StepMeter;

namespace {

struct OnebitAdamImpl final : LowBitOptimizer::Impl {
  OnebitAdamImpl(comm::Communicator& comm, const ParameterLayout& layout,
                 const optim::OnebitAdamOptions& options)
      : Impl(comm, layout,
             settings_of("deepspeed onebit_adam",
                         fmt::format("freeze_step={}", planned(options.freeze)),
                         options)),
        freeze_step(planned(options.freeze)),
        exact_groups(model) {}

  std::int64_t freeze_step;
  std::int64_t frozen_at = 0;  // last exact step, or 0 if not frozen
  optim::ExactGroups exact_groups;
  Buffer denominator;

  void take_step(const StepInput& in, bool averaged, StepMeter& step) override {
    if (!initialized) {
      initialize(in, averaged, step);
    } else if (frozen_at == 0) {
      const float mean = average(in, averaged, step);
      adam().apply(steps, optim::update_arrays(in, mean), model.pool);
      if (steps >= freeze_step) freeze();
    } else {
      compressed_step(in, step);
    }
  }

  // Averages the gradients and exercises the buffers with a momentum of zero,
  // without changing parameters. In groups that stay exact, gradients are
  // averaged twice, by the engine and by the groups themselves.
  void initialize(const StepInput& in, bool averaged, StepMeter& step) {
    if (!averaged) {
      const auto mean = static_cast<float>(1.0 / model.comm.size());
      sum(in.grads, step);
      for (float& g : in.grads.as<float>()) g *= mean;
    }
    exact_groups.begin(in.grads);
    const auto p = in.params.as<float>();
    std::vector<float> unmoved(p.begin(), p.end());
    exact_groups.finish(steps, {.params = unmoved, .grads = in.grads}, 1, step);
    exchange_zeros();
  }

  void exchange_zeros() {
    if (!model.compresses()) return;
    std::vector<float> zeros(model.size());
    exchange().all_reduce(zeros);
    clear_residuals();
  }

  void freeze() {
    denominator = Buffer::of<float>(model.size());
    make_denominator(model.layout.compressed, denominator);
    frozen_at = steps;
  }

  void compressed_step(const StepInput& in, StepMeter& step) {
    step.report().grad_norm_is_estimate = true;  // no norm is computed
    exact_groups.begin(in.grads);
    average_momentum(in, step);
    exact_groups.finish(steps, in, 1 / in.loss_scale, step);
  }

  void average_momentum(const StepInput& in, StepMeter& step) {
    const Coefficients c = model.coefficients(steps, 1 / in.loss_scale);
    const auto m = adam().exp_avg().as<float>();
    for (const GroupRange& r : model.layout.compressed)
      kernels::momentum(&m[r.range.offset],
                        in.grads.subview(r.range.offset, r.range.size),
                        c[r.group]);
    if (model.compresses())
      step.adding_waits_of(exchange(), [&](auto& all) { all.all_reduce(m); });
    for (const GroupRange& r : model.layout.compressed)
      apply(r.range, in, c[r.group]);
  }

  void apply(Range range, const StepInput& in,
             const kernels::AdamCoefficients& c) {
    multiply_by_mask(adam().exp_avg().as<float>(), range);
    kernels::frozen_update(
        {.params = in.params.as<float>().data() + range.offset,
         .exp_avg = adam().exp_avg().as<float>().data() + range.offset,
         .denominator = denominator.as<float>().data() + range.offset,
         .low_precision = optim::part_of(in.low_precision, range),
         .size = range.size},
        c);
  }

  [[nodiscard]] optim::Progress progress() const override {
    return {.phase = frozen_at == 0 ? optim::Phase::kExact
                                    : optim::Phase::kCompressed,
            .freeze_step = freeze_step};
  }

  void add_own(optim::State& state) const override {
    state.common.put_integer("frozen_at", frozen_at);
    if (frozen_at > 0) state.add_free("denominator", denominator.view());
  }
  void complete(StateDict& state) const override {
    state.put_integer("frozen_at", 0);
  }

  [[nodiscard]] bool is_past(const StateDict& state) const {
    return optim::saved_count(state, "step") >=
           std::max<std::int64_t>(2, freeze_step);
  }
  [[nodiscard]] bool is_in_stage_of(const StateDict& state) const override {
    return (optim::saved_count(state, "frozen_at") > 0) == is_past(state);
  }

  // DeepSpeed derives the stage from the loaded step. The variance exists in
  // both stages, and denominators follow from it.
  [[nodiscard]] optim::Adoption adopt_own(StateDict& state,
                                          bool /*goes_on*/) override {
    const bool is_frozen = is_past(state);
    const std::int64_t saved = optim::saved_count(state, "frozen_at");
    return [=, this] {
      denominator = Buffer();
      frozen_at = 0;
      if (!is_frozen) return;
      freeze();
      if (saved > 0) frozen_at = saved;
    };
  }
};

}  // namespace

void validate(const optim::OnebitAdamOptions& options,
              const ParameterLayout& layout) {
  validate_freezing(options, layout);
}

OnebitAdam::OnebitAdam(comm::Communicator& comm, const ParameterLayout& layout,
                       const optim::OnebitAdamOptions& options)
    : LowBitOptimizer([&] {
        validate(options, layout);
        return std::make_unique<OnebitAdamImpl>(comm, layout, options);
      }()) {}

}  // namespace thinwire::deepspeed
