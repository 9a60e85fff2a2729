// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/data_parallel.h"

#include <fmt/format.h>

#include <cmath>

#include "optim/exact_exchange.h"
#include "optim/gradient_clipping.h"
#include "optim/require.h"
#include "optim/verification.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/error.h"

namespace thinwire::optim {

void ExchangeOptions::validate() const {
  require(std::isfinite(max_grad_norm) && max_grad_norm >= 0, "max_grad_norm",
          "finite and >= 0", max_grad_norm);
  require(bucket_elements >= 1, "bucket_elements", ">= 1", bucket_elements);
  require(verify_every >= 0, "verify_every", ">= 0", verify_every);
  require(num_threads >= 0 && num_threads <= 1024, "num_threads",
          "in [0, 1024]", num_threads);
}

std::string ExchangeOptions::describe() const {
  return fmt::format(
      "max_grad_norm={} calibrated_clipping={} bucket_elements={} "
      "verify_every={}\n",
      max_grad_norm, calibrated_clipping, bucket_elements, verify_every);
}

struct DataParallel::Impl {
  comm::Communicator& comm;
  std::unique_ptr<UpdateRule> rule;
  ExchangeOptions options;
  ThreadPool pool;
  std::vector<GroupRange> ranges;
  std::int64_t steps = 0;
  std::int64_t skipped = 0;

  void verify(View params) {
    if (options.verify_every == 0 || steps % options.verify_every != 0) return;
    verify_same(comm, pool, rule->layout(), params,
                fmt::format("step {}\n{}{}", steps, rule->describe(),
                            options.describe()));
  }
};

DataParallel::DataParallel(comm::Communicator& comm,
                           std::unique_ptr<UpdateRule> rule,
                           const ExchangeOptions& options) {
  options.validate();
  if (rule == nullptr)
    throw Error(ErrorCode::kInvalidArgument,
                "rule must be an update rule, got null");
  comm::require_same(
      comm, "parameter layout and options",
      rule->layout().describe() + rule->describe() + options.describe());
  std::vector<GroupRange> ranges = group_ranges(rule->layout());
  impl_.reset(new Impl{comm, std::move(rule), options,
                       ThreadPool(options.num_threads), std::move(ranges)});
}

DataParallel::~DataParallel() = default;

StepReport DataParallel::step(View params, View grads) {
  Impl& impl = *impl_;
  require_step_views(params, grads, impl.rule->layout().size());
  StepReport report;
  {
    StepMeter meter(impl.comm, report);
    const auto queued =
        queue_sums(impl.comm, grads, impl.ranges, impl.options.bucket_elements);
    meter.waiting([&] {
      for (const comm::Work& work : queued) work.wait();
    });
    const double world = impl.comm.size();
    // A value that is not finite on any rank is not finite in the sum, so all
    // ranks see it without another exchange.
    report.grad_norm = std::sqrt(sum_of_squares(impl.pool, grads)) / world;
    report.applied = std::isfinite(report.grad_norm);
    if (report.applied) {
      report.clip_factor =
          clip_factor(report.grad_norm, impl.options.max_grad_norm);
      const auto scale = static_cast<float>(report.clip_factor / world);
      impl.rule->apply(++impl.steps, params, grads, scale, impl.pool);
      impl.verify(params);
    } else {
      ++impl.skipped;
    }
  }
  return report;
}

std::int64_t DataParallel::steps() const noexcept { return impl_->steps; }

std::int64_t DataParallel::skipped_steps() const noexcept {
  return impl_->skipped;
}

void DataParallel::set_learning_rate(std::size_t group, double learning_rate) {
  impl_->rule->set_learning_rate(group, learning_rate);
}

double DataParallel::learning_rate(std::size_t group) const {
  return impl_->rule->learning_rate(group);
}

std::size_t DataParallel::num_groups() const noexcept {
  return impl_->rule->num_groups();
}

StateDict DataParallel::state_dict() const {
  StateDict state;
  impl_->rule->save(state);
  state.put_text("optimizer", std::string(impl_->rule->name()));
  state.put_text("layout", impl_->rule->layout().describe());
  state.put_integer("step", impl_->steps);
  state.put_integer("skipped_steps", impl_->skipped);
  return state;
}

void DataParallel::load_state_dict(const StateDict& state) {
  require_layout(state, impl_->rule->layout());
  require_text(state, "optimizer", impl_->rule->name());
  const std::int64_t steps = state.integer("step");
  const std::int64_t skipped = state.integer("skipped_steps");
  impl_->rule->load(state);
  impl_->steps = steps;
  impl_->skipped = skipped;
}

}  // namespace thinwire::optim
