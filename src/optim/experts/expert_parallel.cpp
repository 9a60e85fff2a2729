// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/expert_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/require.h"
#include "exchange/bucket_schedule.h"
#include "exchange/exact_average.h"
#include "kernels/pooled_norm.h"
#include "optim/checks.h"
#include "optim/experts/expert_parallel_impl.h"
#include "optim/verification.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/bucket_rule.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::optim {

namespace {

// Returns the layout of these parameters, whose groups keep their numbers.
ParameterLayout part_of(const ParameterLayout& layout,
                        const std::vector<std::size_t>& parameters) {
  std::vector<ParameterSpec> specs;
  for (const std::size_t p : parameters) {
    const Parameter& parameter = layout.parameters()[p];
    specs.push_back({parameter.name, parameter.shape, parameter.group});
  }
  return ParameterLayout::of(std::move(specs), layout.num_groups());
}

// Requires that the sections, one after the other, form the layout.
void require_in_order(const ParameterLayout& layout,
                      const std::vector<HeldParameters>& held) {
  std::size_t next = 0;
  for (const HeldParameters& part : held)
    for (const std::size_t p : part.parameters)
      if (p != next++)
        reject(fmt::format(
            "layout must have dense parameters first, then the experts of one "
            "communicator after those of another; '{}' is out of this order",
            layout.parameters()[p].name));
}

// Moves the last elements of the dense parameters to a separate section.
HeldParameters cut_wide(const ParameterLayout& layout,
                        std::vector<HeldParameters>& held,
                        std::size_t num_wide) {
  require(held.size() == 1, "experts", "none beside parameters of two dtypes",
          held.size() - 1);
  require(num_wide <= layout.size(), "num_wide",
          fmt::format("at most {}", layout.size()), num_wide);
  const std::size_t begin = layout.size() - num_wide;
  HeldParameters wide{held.front().comm, {}};
  std::vector<std::size_t>& dense = held.front().parameters;
  const auto first = std::ranges::find_if(dense, [&](std::size_t p) {
    return layout.parameters()[p].offset >= begin;
  });
  wide.parameters.assign(first, dense.end());
  dense.erase(first, dense.end());
  require(!wide.parameters.empty() &&
              layout.parameters()[wide.parameters.front()].offset == begin,
          "num_wide", "the elements of whole parameters", num_wide);
  return wide;
}

}  // namespace

// Computes the norm of all experts' averaged gradients, each counted once.
// Collective.
ExpertParallel::Impl::Norm ExpertParallel::Impl::norm(const StepInput& in,
                                                      StepReport& report) {
  double own = 0;
  for (const auto& section : sections) {
    StepReport traffic;
    {
      StepMeter meter(section->comm, traffic);
      section->average.complete(optim::part_of(in.grads, section->range),
                                meter);
    }
    report.bytes_sent += traffic.bytes_sent;
    report.collectives += traffic.collectives;
    report.messages += traffic.messages;
    report.exchange_seconds += traffic.exchange_seconds;
    if (section->comm.rank() != 0) continue;
    const double by = divisor(*section, in);
    const View grads = optim::part_of(in.grads, section->range);
    own += counted(kernels::sum_of_squares(pool, grads), grads,
                   within(in.uncounted, section->range), pool) /
           (by * by);
  }
  std::vector<double> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::span<const double>(&own, 1), std::span(all));
  Norm norm;
  for (std::size_t r = 0; r < all.size(); ++r) {
    norm.value += all[r];
    if (!std::isfinite(all[r]) && norm.nonfinite_rank < 0)
      norm.nonfinite_rank = static_cast<int>(r);
  }
  norm.value = std::sqrt(norm.value);
  return norm;
}

ExpertParallel::ExpertParallel(comm::Communicator& comm,
                               const ParameterLayout& layout,
                               const std::vector<ExpertGroup>& experts,
                               const MakeOptimizer& make_dense,
                               const MakeRule& make_rule,
                               const ExchangeOptions& options,
                               std::size_t num_wide)
    : impl_(std::make_unique<Impl>(comm, layout, options)) {
  std::vector<HeldParameters> held;
  comm::require_everywhere(comm, [&] {
    options.validate();
    require_experts(layout, experts);
    held = held_parameters(comm, layout, experts);
    require_in_order(layout, held);
    if (num_wide > 0) held.push_back(cut_wide(layout, held, num_wide));
  });
  if (num_wide > 0) impl_->cut = layout.size() - num_wide;
  require_same_parameters(
      comm, layout, experts, "parameter layout",
      options.describe() +
          (num_wide > 0 ? fmt::format("float32 {}\n", num_wide) : ""));
  const ParameterLayout dense = part_of(layout, held.front().parameters);
  impl_->dense_size = dense.size();
  impl_->num_dense = dense.parameters().size();
  std::size_t offset = dense.size();
  for (std::size_t h = 1; h < held.size(); ++h) {
    auto section = std::make_unique<Section>(
        *held[h].comm, part_of(layout, held[h].parameters), offset, make_rule,
        options, impl_->pool);
    require_same_rule(section->comm, section->rule.get(), options);
    offset += section->range.size;
    impl_->sections.push_back(std::move(section));
  }
  impl_->dense = make_dense(dense);
  if (dynamic_cast<DataParallel*>(impl_->dense.get()) == nullptr)
    impl_->prefix = kOfExperts;
}

ExpertParallel::~ExpertParallel() = default;

StepReport ExpertParallel::step(const StepInput& in) {
  require_step_input(in, impl_->layout.size(), impl_->cut);
  StepReport of_experts;
  const Impl::Norm norm = impl_->norm(in, of_experts);
  StepInput dense = in;
  dense.params = impl_->dense_of(in.params);
  dense.grads = impl_->dense_of(in.grads);
  dense.low_precision = impl_->dense_of(in.low_precision);
  const std::vector<Range> uncounted =
      within(in.uncounted, {0, impl_->dense_size});
  dense.uncounted = uncounted;
  dense.whole_norm = [&](double own) {
    const double whole = std::hypot(own, norm.value);
    return in.whole_norm ? in.whole_norm(whole) : whole;
  };
  // Prevents a step that the dense optimizer skips on only one rank.
  if (!std::isfinite(norm.value) && impl_->options.skip_nonfinite)
    dense.skip_if_any_rank_nonfinite = true;
  StepReport report = impl_->dense->step(dense);
  report.bytes_sent += of_experts.bytes_sent;
  report.collectives += of_experts.collectives;
  report.messages += of_experts.messages;
  report.exchange_seconds += of_experts.exchange_seconds;
  if (!report.applied) {
    if (report.nonfinite_rank < 0) report.nonfinite_rank = norm.nonfinite_rank;
    return report;
  }
  const std::int64_t number = impl_->dense->progress().steps;
  for (const auto& section : impl_->sections) {
    const double by = impl_->divisor(*section, in);
    const UpdateArrays whole =
        update_arrays(in, static_cast<float>(report.clip_factor / by));
    UpdateArrays own = optim::part_of(whole, section->range);
    // fp32 parameters have no rounded copy.
    const View copy = own.low_precision.dtype() == DType::kFloat32
                          ? std::exchange(own.low_precision, View())
                          : View();
    section->rule->apply(number, own, impl_->pool);
    if (!copy.empty()) kernels::convert(own.params, copy);
    if (in.final_range) in.final_range(section->range);
    verify_rule(section->comm, impl_->pool, *section->rule, impl_->options,
                {number, optim::part_of(in.params, section->range)});
  }
  return report;
}

// ---- capabilities

bool ExpertParallel::Impl::reduces() const noexcept {
  return dense->early()->reduces();
}

void ExpertParallel::Impl::reduce(View grads, Range range) {
  if (range.end() <= dense_size)
    return dense->early()->reduce(dense_of(grads), range);
  Section& section = section_of(range);
  section.average.begin_early(
      optim::part_of(grads, section.range),
      {range.offset - section.range.offset, range.size});
}

std::vector<Range> ExpertParallel::Impl::buckets() const {
  std::vector<Range> buckets = dense->early()->buckets();
  if (buckets.empty())
    buckets = exchange::equal_buckets(
        dense_size,
        exchange::bucket_elements(options.bucket_elements, dense_size,
                                  comm.hosts(), exchange::kExactBits));
  for (const auto& section : sections)
    if (section->range.size > 0) buckets.push_back(section->range);
  return buckets;
}

bool ExpertParallel::Impl::measures() const noexcept {
  return dense->early()->measures();
}

void ExpertParallel::Impl::measure(ConstView grads, Range range) {
  if (range.end() <= dense_size)
    dense->early()->measure(grads.subview(0, dense_size), range);
}

void ExpertParallel::Impl::finish() {
  dense->early()->finish();
  for (const auto& section : sections) section->comm.finish_queued();
}

void ExpertParallel::Impl::forget() noexcept { dense->early()->forget(); }

std::int64_t ExpertParallel::Impl::steps_behind() const noexcept {
  return dense->local_steps()->steps_behind();
}

void ExpertParallel::Impl::synchronize(View params) {
  dense->local_steps()->synchronize(dense_of(params));
}

ConstView ExpertParallel::Impl::exchanged_params(ConstView params) const {
  if (steps_behind() == 0) return params;
  const ConstView own =
      dense->local_steps()->exchanged_params(params.subview(0, dense_size));
  if (exchanged.empty()) exchanged = Buffer::of<float>(layout.size());
  const View whole = exchanged.view();
  const std::size_t rest = layout.size() - dense_size;
  kernels::convert(own, whole.subview(0, dense_size));
  kernels::convert(params.subview(dense_size, rest),
                   whole.subview(dense_size, rest));
  return whole;
}

void ExpertParallel::Impl::repeat(View params) {
  dense->local_steps()->repeat(dense_of(params));
}

EarlyGradients* ExpertParallel::early() {
  return impl_->dense->early() == nullptr ? nullptr : impl_.get();
}

LocalSteps* ExpertParallel::local_steps() {
  return impl_->dense->local_steps() == nullptr ? nullptr : impl_.get();
}

FreezeStage* ExpertParallel::freeze() { return impl_->dense->freeze(); }

// ---- numbers

ParameterGroups& ExpertParallel::groups() { return impl_->groups; }

Progress ExpertParallel::progress() const {
  Progress progress = impl_->dense->progress();
  for (const auto& section : impl_->sections)
    for (const double own : section->rule->lamb_coeffs())
      progress.lamb_coeffs.push_back(progress.steps == 0 ? 0 : own);
  return progress;
}

double ExpertParallel::residual_ratio() const {
  return impl_->dense->residual_ratio();
}

void ExpertParallel::set_masters(ConstView params) {
  impl_->dense->set_masters(params.subview(0, impl_->dense_size));
}

}  // namespace thinwire::optim
