// SPDX-License-Identifier: Apache-2.0
// docs/algorithms/outer-loop.md shows the same steps as formulas.
#include "thinwire/outer/outer_loop.h"

#include <cmath>
#include <utility>

#include "core/set_to_zero.h"
#include "exchange/pipeline/places.h"
#include "kernels/pooled_norm.h"
#include "optim/checks.h"
#include "outer/impl.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/comm/local.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/bucket_rule.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/optim/nesterov.h"

namespace thinwire::outer {

using optim::Phase;
using optim::StepInput;
using optim::StepReport;

namespace {

// Treats the changes of parameters like gradients without a backward.
std::unique_ptr<zero::ZeroOptimizer> make_owners(
    comm::Communicator& comm, const ParameterLayout& layout, View anchor,
    const OuterOptions& options, const optim::ExchangeOptions& exchange) {
  zero::ZeroOptions zero{
      .stage = 1,
      .exchange = {.bucket_elements = exchange.bucket_elements,
                   .num_threads = exchange.num_threads},
      .wire = {.bits_up = options.bits_up,
               .bits_down = options.bits_down,
               .residual_dtype = DType::kFloat32},
      .overlap = false};
  const auto rule =
      [nesterov = optim::NesterovOptions{.learning_rate = options.learning_rate,
                                         .momentum = options.momentum}](
          const ParameterLayout& shard) {
        return std::make_unique<optim::Nesterov>(shard, nesterov);
      };
  return std::make_unique<zero::ZeroOptimizer>(comm, layout, rule, anchor,
                                               zero);
}

std::unique_ptr<exchange::ExactAverage> average_of(
    const comm::HostGroups* groups, ThreadPool& pool,
    const ParameterLayout& layout, const optim::ExchangeOptions& exchange) {
  if (groups == nullptr) return nullptr;
  comm::Communicator& inside = *groups->inside;
  return std::make_unique<exchange::ExactAverage>(
      inside, pool, layout.size(),
      exchange::bucket_elements(exchange.bucket_elements, layout.size(),
                                inside.hosts(), exchange::kExactBits));
}

std::unique_ptr<comm::Communicator> alone() {
  return std::move(comm::make_local_group(1).front());
}

std::unique_ptr<optim::Optimizer> made_by(const MakeInner& make_inner,
                                          comm::Communicator& alone) {
  auto inner = make_inner(alone);
  if (inner == nullptr) reject("make_inner must make an optimizer, got none");
  if (inner->local_steps() != nullptr)
    reject("make_inner must make an optimizer without local steps of its own");
  return inner;
}

}  // namespace

// ---- the schedule

void Schedule::took_local_step(const OuterOptions& options) noexcept {
  ++behind;
  if (options.sync_growth == 0 || ++counter < options.sync_growth) return;
  counter = 0;
  length = std::min(2 * length, options.sync_every);
}

std::int64_t Schedule::interval(const OuterOptions& options) const noexcept {
  return options.sync_growth == 0 ? options.sync_every
                                  : std::min(length, options.sync_every);
}

// ---- construction

OuterLoop::Impl::Impl(comm::Communicator& c, const ParameterLayout& l,
                      const MakeInner& make_inner, const OuterOptions& o,
                      const optim::ExchangeOptions& e)
    : comm(c),
      layout(l),
      options(o),
      exchange(e),
      pool(e.num_threads),
      groups(exchange::groups_unless_flat(c)),
      inside(average_of(groups.get(), pool, layout, e)),
      own_comm(alone()),
      inner(made_by(make_inner, *own_comm)),
      warm_up(c, groups.get(), pool, layout, o.warmup_bits, e.bucket_elements),
      anchor(Buffer::of<float>(l.size())),
      owners(make_owners(c, layout, anchor.view(), o, e)),
      number(optim::optimizer_number(c)) {}

OuterLoop::OuterLoop(comm::Communicator& comm, const ParameterLayout& layout,
                     const MakeInner& make_inner, const OuterOptions& options,
                     const optim::ExchangeOptions& exchange) {
  options.validate();
  exchange.validate();
  require(make_inner != nullptr, "make_inner", "a function", "none");
  comm::require_same(
      comm, "parameter layout and options",
      layout.describe() + options.describe() + exchange.describe());
  impl_ = std::make_unique<Impl>(comm, layout, make_inner, options, exchange);
}

OuterLoop::~OuterLoop() = default;

// ---- a step

StepReport OuterLoop::step(const StepInput& in) {
  optim::require_float32_step_input(in, impl_->layout.size());
  StepReport report{.loss_scale = in.loss_scale};
  {
    optim::StepMeter meter(impl_->comm, report);
    if (impl_->is_warming_up())
      impl_->warm_up_step(in, meter);
    else
      impl_->local_step(in, meter);
  }
  if (!report.applied) ++impl_->counts.skipped;
  return report;
}

bool OuterLoop::Impl::skips(const StepInput& in) const noexcept {
  return exchange.skip_nonfinite || in.skip_if_any_rank_nonfinite;
}

// Returns false if the step is skipped because a gradient is not finite.
bool OuterLoop::Impl::take_inner_step(const StepInput& in, StepReport& report) {
  const StepReport own = inner->step(in);
  report.applied = own.applied;
  report.grad_norm = own.grad_norm;
  report.clip_factor = own.clip_factor;
  report.masked = own.masked;
  report.heavy = own.heavy;
  report.revived = own.revived;
  if (!own.applied) return false;
  ++counts.steps;
  const std::int64_t every = exchange.verify_every;
  verification_is_due |= every != 0 && counts.steps % every == 0;
  return true;
}

void OuterLoop::Impl::warm_up_step(const StepInput& in,
                                   optim::StepMeter& meter) {
  StepReport& report = meter.report();
  report.bits = comm.size() == 1 ? 0 : options.warmup_bits;
  const optim::Agreement agreement = optim::agree(
      comm, {.squares = optim::counted_squares(in, pool), .optimizer = number},
      meter);
  first_agreements.report(agreement, report);
  if (agreement.nonfinite_rank >= 0 && skips(in)) {
    report.applied = false;
    report.nonfinite_rank = agreement.nonfinite_rank;
    optim::tell_of_nonfinite(in);
    return;
  }
  StepInput averaged = in;
  averaged.loss_scale *= warm_up.average(in.grads, in.loss_scale, meter);
  averaged.finds_nonfinite = false;
  double mean_norm = 0;
  averaged.whole_norm = [&](double own) {
    mean_norm = own;
    return optim::whole_norm(in, own);
  };
  if (!take_inner_step(averaged, report)) return;
  norm.measure(mean_norm, agreement.rms_norm / in.loss_scale);
  verify(in.params);
}

void OuterLoop::Impl::local_step(const StepInput& in, optim::StepMeter& meter) {
  StepReport& report = meter.report();
  report.phase = Phase::kLocal;
  report.grad_norm_is_estimate = true;
  double squares = 0;
  if (skips(in) || inside) squares = optim::counted_squares(in, pool);
  bool is_finite = !skips(in) || std::isfinite(squares);
  if (in.skip_if_any_rank_nonfinite) {
    report.nonfinite_rank =
        agree(comm, {.squares = squares}, true, meter).nonfinite_rank;
    if (report.nonfinite_rank >= 0) {
      report.applied = false;
      optim::tell_of_nonfinite(in);
      return;
    }
  }
  begin_local_steps(in.params);
  const bool syncs = schedule.behind + 1 >= schedule.interval(options);
  if (!is_finite) left_out_a_step = true;
  StepInput own = in;
  own.finds_nonfinite = false;
  double of_host = 0;  // RMS norm of the host's gradients
  if (inside) {
    const optim::Agreement agreement =
        agree(*groups->inside, {.squares = squares}, true, meter);
    is_finite = !skips(in) || agreement.nonfinite_rank < 0;
    of_host = is_finite ? agreement.rms_norm / in.loss_scale : 0;
  }
  // A worker whose gradient is not finite moves by its momentum alone, because
  // all ranks must count the same steps.
  if (!is_finite) {
    set_to_zero(in.grads);
  } else if (inside) {
    inside->complete(in.grads, meter);
    own.loss_scale *= exchange::sum_divisor(*groups->inside, in.grads.dtype());
  }
  own.whole_norm = [&](double of_rank) {
    return optim::whole_norm(in, norm.estimate(inside ? of_host : of_rank));
  };
  if (syncs) own.final_range = {};
  if (!take_inner_step(own, report)) return;
  report.nonfinite_rank = std::exchange(unreported_rank, -1);
  schedule.took_local_step(options);
  if (!syncs) return;
  const bool reuses = is_finite && in.grads.dtype() == DType::kFloat32;
  sync(in.params, reuses ? in.grads : View(), /*in_step=*/true, meter);
  if (!in.low_precision.empty()) kernels::convert(in.params, in.low_precision);
}

// Ends the warm-up, during which parameters are equal on all ranks.
void OuterLoop::Impl::begin_local_steps(View now) {
  if (!restored_params.empty()) {
    kernels::convert(restored_params.view(), now);
    restored_params = Buffer();
  }
  params = now;
  if (is_local) return;
  require_equal(now);
  is_local = true;
  warm_up.release();
  kernels::convert(now, anchor.view());
  owners->set_masters(anchor.view());
}

// ---- local steps

ConstView OuterLoop::Impl::exchanged_params(ConstView now) const {
  return schedule.behind == 0 ? now : anchor.view();
}

void OuterLoop::Impl::repeat(View now) {
  if (now.empty() || restored_params.empty()) return;
  require_view("params", now, layout.size(), true, false);
  begin_local_steps(now);
}

// ---- other functions

const OuterOptions& OuterLoop::options() const noexcept {
  return impl_->options;
}

std::int64_t OuterLoop::syncs() const noexcept { return impl_->schedule.syncs; }

optim::ParameterGroups& OuterLoop::groups() { return impl_->inner->groups(); }

optim::Progress OuterLoop::progress() const {
  optim::Progress progress = impl_->inner->progress();
  progress.skipped = impl_->counts.skipped;
  if (impl_->is_warming_up())
    progress.phase = Phase::kExact;
  else
    progress.phase =
        impl_->schedule.behind + 1 >= impl_->schedule.interval(impl_->options)
            ? Phase::kCompressed
            : Phase::kLocal;
  return progress;
}

optim::LocalSteps* OuterLoop::local_steps() { return impl_.get(); }

optim::FreezeStage* OuterLoop::freeze() { return impl_->inner->freeze(); }

// The caller has loaded the same parameters on all ranks.
void OuterLoop::set_masters(ConstView params) {
  impl_->inner->set_masters(params);
  if (!impl_->is_local) return;
  require_view("params", params, impl_->layout.size(), true, true);
  kernels::convert(params, impl_->anchor.view());
  impl_->owners->set_masters(impl_->anchor.view());
  impl_->restored_params = Buffer();
  impl_->schedule.behind = 0;
}

}  // namespace thinwire::outer
