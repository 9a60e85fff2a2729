// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/expert_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/require.h"
#include "exchange/bucket_schedule.h"
#include "optim/checks.h"
#include "optim/experts/expert_parallel_impl.h"
#include "optim/verification.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/bucket_rule.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::optim {

namespace {

// These parameters alone, in groups numbered as those of the whole.
ParameterLayout part_of(const ParameterLayout& layout,
                        const std::vector<std::size_t>& parameters) {
  std::vector<ParameterSpec> specs;
  for (const std::size_t p : parameters) {
    const Parameter& parameter = layout.parameters()[p];
    specs.push_back({parameter.name, parameter.shape, parameter.group});
  }
  return ParameterLayout::of(std::move(specs), layout.num_groups());
}

// One after the other, they are the layout.
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

// Takes the last elements away from the dense parameters.
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

// Collective: of all experts' averaged gradients, each of which counts once,
// whoever holds it.
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
    own += sum_of_squares(pool, optim::part_of(in.grads, section->range)) /
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
  dense.whole_norm = [&](double own) {
    const double whole = std::hypot(own, norm.value);
    return in.whole_norm ? in.whole_norm(whole) : whole;
  };
  // Also where the dense optimizer would leave the step out on one rank.
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
  const std::int64_t number = impl_->dense->steps();
  for (const auto& section : impl_->sections) {
    const double by = impl_->divisor(*section, in);
    const UpdateArrays whole =
        update_arrays(in, static_cast<float>(report.clip_factor / by));
    UpdateArrays own = optim::part_of(whole, section->range);
    // Nothing is rounded to fp32.
    const View copy = own.low_precision.dtype() == DType::kFloat32
                          ? std::exchange(own.low_precision, View())
                          : View();
    section->rule->apply(number, own, impl_->pool);
    if (!copy.empty()) kernels::convert(own.params, copy);
    verify_rule(section->comm, impl_->pool, *section->rule, impl_->options,
                {number, optim::part_of(in.params, section->range)});
  }
  return report;
}

// ---- before the step

void ExpertParallel::reduce_early(View grads, Range range) {
  if (range.end() <= impl_->dense_size)
    return impl_->dense->reduce_early(impl_->dense_of(grads), range);
  Section& section = impl_->section_of(range);
  section.average.begin_early(
      optim::part_of(grads, section.range),
      {range.offset - section.range.offset, range.size});
}

bool ExpertParallel::reduces_early() const noexcept {
  return impl_->dense->reduces_early();
}

std::vector<Range> ExpertParallel::buckets() const {
  std::vector<Range> buckets = impl_->dense->buckets();
  if (buckets.empty())
    buckets = exchange::equal_buckets(
        impl_->dense_size,
        exchange::bucket_elements(impl_->options.bucket_elements,
                                  impl_->dense_size, impl_->comm.hosts(),
                                  kExactBits));
  for (const auto& section : impl_->sections)
    if (section->range.size > 0) buckets.push_back(section->range);
  return buckets;
}

void ExpertParallel::measure_early(ConstView grads, Range range) {
  if (range.end() <= impl_->dense_size)
    impl_->dense->measure_early(grads.subview(0, impl_->dense_size), range);
}

bool ExpertParallel::measures_early() const noexcept {
  return impl_->dense->measures_early();
}

void ExpertParallel::finish_early() {
  impl_->dense->finish_early();
  for (const auto& section : impl_->sections) section->comm.finish_queued();
}

void ExpertParallel::forget_early() noexcept { impl_->dense->forget_early(); }

void ExpertParallel::set_freeze_gate(FreezeGate gate) {
  impl_->dense->set_freeze_gate(std::move(gate));
}

std::optional<std::int64_t> ExpertParallel::freeze_step() const {
  return impl_->dense->freeze_step();
}

void ExpertParallel::set_exp_avg_mask(std::size_t group,
                                      std::span<const float> mask) {
  impl_->dense->set_exp_avg_mask(group, mask);
}

std::vector<std::string> ExpertParallel::take_notes() {
  return impl_->dense->take_notes();
}

// ---- numbers

double ExpertParallel::residual_ratio() const {
  return impl_->dense->residual_ratio();
}

std::vector<double> ExpertParallel::lamb_coeffs() const {
  std::vector<double> all = impl_->dense->lamb_coeffs();
  for (const auto& section : impl_->sections)
    for (const double own : section->rule->lamb_coeffs())
      all.push_back(steps() == 0 ? 0 : own);
  return all;
}

std::int64_t ExpertParallel::steps() const noexcept {
  return impl_->dense->steps();
}

std::int64_t ExpertParallel::skipped_steps() const noexcept {
  return impl_->dense->skipped_steps();
}

Phase ExpertParallel::phase() const noexcept { return impl_->dense->phase(); }

void ExpertParallel::set_learning_rate(std::size_t group,
                                       double learning_rate) {
  impl_->dense->set_learning_rate(group, learning_rate);
  for (const auto& section : impl_->sections)
    section->rule->set_learning_rate(group, learning_rate);
}

double ExpertParallel::learning_rate(std::size_t group) const {
  return impl_->dense->learning_rate(group);
}

void ExpertParallel::set_weight_decay(std::size_t group, double weight_decay) {
  impl_->dense->set_weight_decay(group, weight_decay);
  for (const auto& section : impl_->sections)
    section->rule->set_weight_decay(group, weight_decay);
}

double ExpertParallel::weight_decay(std::size_t group) const {
  return impl_->dense->weight_decay(group);
}

std::size_t ExpertParallel::num_groups() const noexcept {
  return impl_->dense->num_groups();
}

// ---- parameters that differ between exchanges

void ExpertParallel::synchronize(View params) {
  impl_->dense->synchronize(impl_->dense_of(params));
}

void ExpertParallel::repeat_local_steps(View params) {
  impl_->dense->repeat_local_steps(impl_->dense_of(params));
}

void ExpertParallel::read_masters(ConstView params) {
  impl_->dense->read_masters(params.subview(0, impl_->dense_size));
}

ConstView ExpertParallel::exchanged_params(ConstView params) const {
  if (steps_behind() == 0) return params;
  const std::size_t dense = impl_->dense_size;
  const ConstView own =
      impl_->dense->exchanged_params(params.subview(0, dense));
  if (impl_->exchanged.empty())
    impl_->exchanged = Buffer::of<float>(impl_->layout.size());
  const View whole = impl_->exchanged.view();
  const std::size_t rest = impl_->layout.size() - dense;
  kernels::convert(own, whole.subview(0, dense));
  kernels::convert(params.subview(dense, rest), whole.subview(dense, rest));
  return whole;
}

std::int64_t ExpertParallel::steps_behind() const noexcept {
  return impl_->dense->steps_behind();
}

}  // namespace thinwire::optim
