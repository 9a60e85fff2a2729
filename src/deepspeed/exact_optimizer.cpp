// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <utility>

#include "deepspeed/own_state.h"
#include "exchange/exact_average.h"
#include "kernels/pooled_norm.h"
#include "optim/checks.h"
#include "optim/saved_state.h"
#include "optim/step_pieces.h"
#include "optim/verification.h"
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
  optim::StepCounts counts;

  [[nodiscard]] StepReport step(const StepInput& in, bool averaged) {
    optim::require_step_input(in, rule->layout().size());
    StepReport report{.loss_scale = in.loss_scale};
    {
      StepMeter meter(comm, report);
      take_step(in, averaged, meter);
    }
    if (!report.applied) ++counts.skipped;
    return report;
  }

  void take_step(const StepInput& in, bool averaged, StepMeter& meter) {
    StepReport& report = meter.report();
    double divisor = in.loss_scale;
    if (!averaged) {
      const Range whole{0, rule->layout().size()};
      const auto queued =
          exchange::queue_sums(comm, in.grads, {&whole, 1}, whole.size);
      meter.wait_for(queued);
      divisor *= exchange::sum_divisor(comm, in.grads.dtype());
    }
    report.grad_norm =
        std::sqrt(kernels::sum_of_squares(pool, in.grads)) / divisor;
    report.applied = std::isfinite(report.grad_norm);
    if (!report.applied) return;
    rule->apply(++counts.steps,
                optim::update_arrays(in, static_cast<float>(1 / divisor)),
                pool);
    optim::verify_rule(comm, pool, *rule, options, {counts.steps, in.params});
  }
};

ExactOptimizer::ExactOptimizer(comm::Communicator& comm,
                               std::unique_ptr<optim::UpdateRule> rule,
                               const optim::ExchangeOptions& options) {
  optim::require_same_rule(comm, rule.get(), options);
  impl_.reset(new Impl{
      comm, std::move(rule), options, ThreadPool(options.num_threads), {}});
}

ExactOptimizer::~ExactOptimizer() = default;

StepReport ExactOptimizer::step(const StepInput& in) {
  return impl_->step(in, false);
}

StepReport ExactOptimizer::step_averaged(const StepInput& in) {
  return impl_->step(in, true);
}

optim::ParameterGroups& ExactOptimizer::groups() { return *impl_->rule; }

optim::Progress ExactOptimizer::progress() const {
  return {.steps = impl_->counts.steps,
          .skipped = impl_->counts.skipped,
          .lamb_coeffs = impl_->rule->lamb_coeffs()};
}

optim::State ExactOptimizer::state() const {
  return own_state(optim::rule_state(*impl_->rule, impl_->counts));
}

optim::Optimizer::Adoption ExactOptimizer::adopt(StateDict state) {
  return optim::adopt_rule_state(*impl_->rule, impl_->counts, std::move(state));
}

void ExactOptimizer::require_owner(const StateDict& state) const {
  optim::require_layout(state, impl_->rule->layout());
}

}  // namespace thinwire::deepspeed
