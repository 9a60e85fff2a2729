// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/require.h"
#include "exchange/exact_average.h"
#include "kernels/pooled_norm.h"
#include "optim/averages/unit_average.h"
#include "optim/checks.h"
#include "optim/gradient_agreement.h"
#include "optim/saved_state.h"
#include "optim/verification.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/bucket_rule.h"

namespace thinwire::optim {

void ExchangeOptions::validate() const {
  require(std::isfinite(max_grad_norm) && max_grad_norm >= 0, "max_grad_norm",
          "finite and >= 0", max_grad_norm);
  require(verify_every >= 0, "verify_every", ">= 0", verify_every);
  require(num_threads >= 0 && num_threads <= 1024, "num_threads",
          "in [0, 1024]", num_threads);
}

std::string ExchangeOptions::describe() const {
  return fmt::format(
      "max_grad_norm={} lagged_clipping={} under_next_step={} "
      "bucket_elements={} "
      "verify_every={} "
      "skip_nonfinite={}\n",
      max_grad_norm, lagged_clipping, under_next_step, bucket_elements,
      verify_every, skip_nonfinite);
}

struct DataParallel::Impl final : EarlyGradients {
  comm::Communicator& comm;
  std::unique_ptr<UpdateRule> rule;
  ExchangeOptions options;
  ThreadPool pool;
  const std::size_t bucket;  // in elements
  exchange::ExactAverage average;
  std::unique_ptr<UnitAverage> units;  // null if averages are exact
  std::uint32_t number;                // this object's optimizer_number()
  FirstAgreements first_agreements;
  StepCounts counts;

  Impl(comm::Communicator& c, std::unique_ptr<UpdateRule> r,
       const ExchangeOptions& o, const AverageOptions& a)
      : comm(c),
        rule(std::move(r)),
        options(o),
        pool(o.num_threads),
        bucket(exchange::bucket_elements(o.bucket_elements,
                                         rule->layout().size(), c.hosts(),
                                         exchange::kExactBits)),
        average(c, pool, rule->layout().size(), bucket),
        number(optimizer_number(c)) {
    if (!a.is_exact())
      units = std::make_unique<UnitAverage>(c, pool, rule->layout(), a,
                                            o.bucket_elements);
  }

  [[nodiscard]] bool reduces() const noexcept override { return true; }
  void reduce(View grads, Range range) override {
    if (units) return units->begin_early(grads, range);
    average.begin_early(grads, range);
  }
  [[nodiscard]] bool has_begun() const {
    return units ? units->has_begun() : average.has_begun();
  }

  void take_step(const StepInput& in, StepMeter& meter, StepReport& report) {
    // Without this agreement, the sum shows that some rank's value is not
    // finite.
    if (in.finds_nonfinite && !has_begun()) {
      const auto agreement =
          agree(comm,
                {.squares = kernels::sum_of_squares(pool, in.grads),
                 .optimizer = number},
                meter);
      first_agreements.report(agreement, report);
      report.nonfinite_rank = agreement.nonfinite_rank;
      report.applied = agreement.nonfinite_rank < 0;
      if (!report.applied) {
        tell_of_nonfinite(in);
        return;
      }
    }
    if (!units) {
      average.complete(in.grads, meter);
      return apply(in, exchange::sum_divisor(comm, in.grads.dtype()), report);
    }
    StepInput averaged = in;
    averaged.grads = units->average(in, meter);
    apply(averaged, 1, report);
  }

  // Takes the step with the average, which is the gradients divided by `ranks`.
  void apply(const StepInput& in, double ranks, StepReport& report) {
    const double divisor = in.loss_scale * ranks;
    report.grad_norm =
        whole_norm(in, std::sqrt(counted_squares(in, pool)) / divisor);
    const bool skips = options.skip_nonfinite || in.skip_if_any_rank_nonfinite;
    report.applied = std::isfinite(report.grad_norm) || !skips;
    if (units) units->end_step(report.applied);
    if (!report.applied) return;
    report.clip_factor = clip_factor(report.grad_norm, options.max_grad_norm);
    apply_by_bucket(
        *rule, ++counts.steps,
        update_arrays(in, static_cast<float>(report.clip_factor / divisor)),
        pool, {bucket, in.final_range});
    verify_rule(comm, pool, *rule, options, {counts.steps, in.params});
  }
};

DataParallel::DataParallel(comm::Communicator& comm,
                           std::unique_ptr<UpdateRule> rule,
                           const ExchangeOptions& options,
                           const AverageOptions& average) {
  average.validate();
  require_same_rule(comm, rule.get(), options, average.describe());
  impl_ = std::make_unique<Impl>(comm, std::move(rule), options, average);
}

DataParallel::~DataParallel() = default;

StepReport DataParallel::step(const StepInput& in) {
  require_step_input(in, impl_->rule->layout().size());
  if (!impl_->rule->takes(in.params.dtype()))
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("params: {} with these options takes none of {}",
                            impl_->rule->name(), to_string(in.params.dtype())));
  StepReport report{.loss_scale = in.loss_scale};
  {
    StepMeter meter(impl_->comm, report);
    impl_->take_step(in, meter, report);
  }
  if (!report.applied) ++impl_->counts.skipped;
  return report;
}

ParameterGroups& DataParallel::groups() { return *impl_->rule; }

Progress DataParallel::progress() const {
  Progress progress{.steps = impl_->counts.steps,
                    .skipped = impl_->counts.skipped,
                    .lamb_coeffs = impl_->rule->lamb_coeffs()};
  if (progress.steps == 0) std::ranges::fill(progress.lamb_coeffs, 0.0);
  return progress;
}

EarlyGradients* DataParallel::early() { return impl_.get(); }

State DataParallel::state() const {
  State state = rule_state(*impl_->rule, impl_->counts);
  if (impl_->units) impl_->units->add_to(state);
  return state;
}

Optimizer::Adoption DataParallel::adopt(StateDict state) {
  require_rule(state, impl_->rule->name());
  Notes notes;
  optim::Adoption of_units = [] {};
  if (impl_->units)
    of_units = impl_->units->adopt(state, notes);
  else
    note_unused_averages(state, notes);
  return [of_rule =
              adopt_rule_state(*impl_->rule, impl_->counts, std::move(state)),
          of_units, notes] {
    static_cast<void>(of_rule());
    of_units();
    return notes;
  };
}

void DataParallel::require_owner(const StateDict& state) const {
  require_layout(state, impl_->rule->layout());
  if (impl_->units) impl_->units->require_owner(state);
}

}  // namespace thinwire::optim
