// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <utility>

#include "optim/checks.h"
#include "optim/exact_exchange.h"
#include "optim/verification.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/deepspeed/optimizers.h"

namespace thinwire::deepspeed {

using optim::StepInput;
using optim::StepMeter;
using optim::StepReport;

struct ExactOptimizer::Impl {
  comm::Communicator& comm;
  std::unique_ptr<optim::UpdateRule> rule;
  optim::ExchangeOptions options;
  ThreadPool pool;
  std::int64_t steps = 0;
  std::int64_t skipped = 0;

  [[nodiscard]] StepReport step(const StepInput& in, bool averaged) {
    optim::require_step_input(in, rule->layout().size());
    StepReport report{.loss_scale = in.loss_scale};
    {
      StepMeter meter(comm, report);
      take_step(in, averaged, meter);
    }
    if (!report.applied) ++skipped;
    return report;
  }

  void take_step(const StepInput& in, bool averaged, StepMeter& meter) {
    StepReport& report = meter.report();
    double divisor = in.loss_scale;
    if (!averaged) {
      const auto whole = optim::group_ranges(rule->layout());
      const auto queued =
          optim::queue_sums(comm, in.grads, whole, rule->layout().size());
      meter.waiting([&] {
        for (const comm::Work& work : queued) work.wait();
      });
      divisor *= optim::sum_divisor(comm, in.grads.dtype());
    }
    report.grad_norm =
        std::sqrt(optim::sum_of_squares(pool, in.grads)) / divisor;
    report.applied = std::isfinite(report.grad_norm);
    if (!report.applied) return;
    rule->apply(++steps,
                optim::update_arrays(in, static_cast<float>(1 / divisor)),
                pool);
    if (options.verify_every > 0 && steps % options.verify_every == 0)
      optim::verify_same(
          comm, pool, rule->layout(), in.params,
          "step " + std::to_string(steps) + '\n' + rule->describe());
  }
};

ExactOptimizer::ExactOptimizer(comm::Communicator& comm,
                               std::unique_ptr<optim::UpdateRule> rule,
                               const optim::ExchangeOptions& options) {
  options.validate();
  if (rule == nullptr)
    throw Error(ErrorCode::kInvalidArgument,
                "rule must be an update rule, got null");
  comm::require_same(
      comm, "parameter layout and options",
      rule->layout().describe() + rule->describe() + options.describe());
  impl_.reset(new Impl{comm, std::move(rule), options,
                       ThreadPool(options.num_threads)});
}

ExactOptimizer::~ExactOptimizer() = default;

StepReport ExactOptimizer::step(const StepInput& in) {
  return impl_->step(in, false);
}

StepReport ExactOptimizer::step_averaged(const StepInput& in) {
  return impl_->step(in, true);
}

std::int64_t ExactOptimizer::steps() const noexcept { return impl_->steps; }

std::int64_t ExactOptimizer::skipped_steps() const noexcept {
  return impl_->skipped;
}

void ExactOptimizer::set_learning_rate(std::size_t group, double rate) {
  impl_->rule->set_learning_rate(group, rate);
}

double ExactOptimizer::learning_rate(std::size_t group) const {
  return impl_->rule->learning_rate(group);
}

std::size_t ExactOptimizer::num_groups() const noexcept {
  return impl_->rule->num_groups();
}

StateDict ExactOptimizer::state_dict() const {
  StateDict state;
  impl_->rule->save(state);
  state.put_text("optimizer", std::string(impl_->rule->name()));
  state.put_text("layout", impl_->rule->layout().describe());
  state.put_integer("step", impl_->steps);
  state.put_integer("skipped_steps", impl_->skipped);
  return state;
}

void ExactOptimizer::load_state_dict(const StateDict& state) {
  optim::require_layout(state, impl_->rule->layout());
  optim::require_text(state, "optimizer", impl_->rule->name());
  const std::int64_t steps = state.integer("step");
  const std::int64_t skipped = state.integer("skipped_steps");
  impl_->rule->load(state);
  impl_->steps = steps;
  impl_->skipped = skipped;
}

}  // namespace thinwire::deepspeed
