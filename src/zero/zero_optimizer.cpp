// SPDX-License-Identifier: Apache-2.0
#include "thinwire/zero/zero_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "optim/checks.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/error.h"
#include "thinwire/core/memory.h"
#include "thinwire/exchange/bucket_rule.h"
#include "zero/impl.h"

namespace thinwire::zero {

using optim::StepInput;
using optim::StepReport;

namespace {

// Returns the layout's groups that are not expert groups.
std::vector<std::size_t> dense_groups(const ParameterLayout& layout,
                                      const ZeroOptions& options) {
  std::vector<std::size_t> groups;
  for (std::size_t g = 0; g < layout.num_groups(); ++g)
    if (std::none_of(options.experts.begin(), options.experts.end(),
                     [&](const ExpertGroup& e) { return e.group == g; }))
      groups.push_back(g);
  return groups;
}

// Returns the buckets of all groups in flat order.
std::vector<BucketOfGroup> all_buckets(
    const std::vector<std::unique_ptr<ShardGroup>>& groups) {
  std::vector<BucketOfGroup> all;
  for (const auto& group : groups)
    for (const ShardBucket& bucket : group->shards().buckets())
      all.push_back(
          {group.get(),
           static_cast<std::size_t>(&bucket - group->shards().buckets().data()),
           bucket.range});
  std::sort(all.begin(), all.end(),
            [](const BucketOfGroup& a, const BucketOfGroup& b) {
              return a.range.offset < b.range.offset;
            });
  return all;
}

std::vector<Range> ranges_of(const std::vector<BucketOfGroup>& buckets) {
  std::vector<Range> ranges;
  for (const BucketOfGroup& bucket : buckets) ranges.push_back(bucket.range);
  return ranges;
}

ZeroOptions with_buckets(ZeroOptions options, const ParameterLayout& layout,
                         const comm::Communicator& comm) {
  std::size_t& chosen = options.exchange.bucket_elements;
  chosen = exchange::bucket_elements(chosen,
                                     optim::dense_size(layout, options.experts),
                                     comm.hosts(), bucket_bits(options.wire));
  return options;
}

// Returns the options for fp32 parameters in a 16-bit model.
ZeroOptions without_16_bits(ZeroOptions options) {
  options.dtype = options.accumulation_dtype = DType::kFloat32;
  options.communication_dtype.reset();
  options.wire = {};
  return options;
}

}  // namespace

ZeroOptimizer::Impl::Impl(comm::Communicator& c, const ParameterLayout& l,
                          const MakeRule& make_rule, View p,
                          const ZeroOptions& settings, ConstView initial)
    : WholeValues(layout, window, settings.stage == 1),
      comm(c),
      layout(l),
      params(p),
      options(with_buckets(settings, l, c)),
      wide_options(without_16_bits(options)),
      scale(settings.dtype, settings.loss_scale),
      pool(settings.exchange.num_threads),
      groups(make_groups(make_rule, initial)),
      rules([this] {
        std::vector<optim::ParameterGroups*> all;
        for (const auto& group : groups) all.push_back(&group->rule());
        return all;
      }),
      num_squares(count_squares()),
      buckets(all_buckets(groups)),
      window(layout, ranges_of(buckets), *this),
      early(*this) {}

std::vector<std::unique_ptr<ShardGroup>> ZeroOptimizer::Impl::make_groups(
    const MakeRule& make_rule, ConstView initial) {
  const MemoryScope scope(MemoryKind::kStates);
  std::vector<std::unique_ptr<ShardGroup>> made;
  const std::size_t first = params.is_joined() ? params.first_size() : 0;
  const auto add = [&](comm::Communicator& of,
                       std::vector<std::size_t> of_layout, Range part = {},
                       bool is_wide = false) {
    made.push_back(std::make_unique<ShardGroup>(
        ShardGroupParts{.comm = of,
                        .layout = layout,
                        .make_rule = make_rule,
                        .params = params,
                        .initial = initial,
                        .options = is_wide ? wide_options : options,
                        .groups = std::move(of_layout),
                        .part = part,
                        .is_wide = is_wide,
                        .batch_ranks = comm.size(),
                        .scale = scale,
                        .pool = pool}));
  };
  // An empty list stands for all groups, even if the layout has none.
  add(comm,
      options.experts.empty() ? std::vector<std::size_t>{}
                              : dense_groups(layout, options),
      {0, first});
  if (first > 0)
    add(comm, {}, {first, layout.size() - first}, /*is_wide=*/true);
  for (const ExpertGroup& experts : options.experts)
    add(*experts.comm, {experts.group});
  return made;
}

std::vector<std::size_t> ZeroOptimizer::Impl::count_squares() const {
  std::size_t own = 0;
  for (const auto& group : groups)
    own += num_cells(group->shards(), group->comm().rank());
  const auto own_integer = static_cast<std::int64_t>(own);
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::span(&own_integer, 1), all);
  return {all.begin(), all.end()};
}

ZeroOptimizer::ZeroOptimizer(comm::Communicator& comm,
                             const ParameterLayout& layout,
                             const MakeRule& make_rule, View params,
                             const ZeroOptions& options, ConstView initial) {
  options.validate();
  optim::require_experts(layout, options.experts);
  const auto check = [&](std::string_view name, ConstView view, DType dtype) {
    if (view.dtype() != dtype || view.size() != layout.size())
      reject(fmt::format("{} must be {} of {} elements, got {} of {}", name,
                         to_string(dtype), layout.size(),
                         to_string(view.dtype()), view.size()));
  };
  check("params", params, options.dtype);
  optim::require_fit_for_two_dtypes(params, options.master_dtype,
                                    options.experts.size());
  if (!initial.empty()) check("initial", initial, DType::kFloat32);
  if (make_rule == nullptr)
    reject("make_rule must make an update rule, got none");
  const auto whole = make_rule(
      ParameterLayout::of({}, std::max<std::size_t>(1, layout.num_groups())));
  const std::string rule = whole == nullptr ? "none\n" : whole->describe();
  optim::require_same_parameters(
      comm, layout, options.experts, "parameter layout and options",
      rule + options.describe() + fmt::format("{}\n", params.first_size()));
  impl_ = std::make_unique<Impl>(comm, layout, make_rule, params, options,
                                 initial.empty() ? ConstView(params) : initial);
}

ZeroOptimizer::~ZeroOptimizer() = default;

double ZeroOptimizer::loss_scale() const noexcept {
  return impl_->scale.value();
}

void ZeroOptimizer::set_loss_scale(double scale) { impl_->scale.set(scale); }

const ZeroOptions& ZeroOptimizer::options() const noexcept {
  return impl_->options;
}

const ShardLayout& ZeroOptimizer::shards() const noexcept {
  return impl_->groups.front()->shards();
}

exchange::GradientWindow& ZeroOptimizer::gradients() noexcept {
  return impl_->window;
}

WholeValues& ZeroOptimizer::whole_values() noexcept { return *impl_; }

// ---- other functions

optim::ParameterGroups& ZeroOptimizer::groups() { return impl_->rules; }

optim::Progress ZeroOptimizer::progress() const {
  optim::Progress progress{.steps = impl_->counts.steps,
                           .skipped = impl_->counts.skipped};
  if (impl_->groups.front()->rule().needs_norms()) {
    progress.lamb_coeffs.resize(impl_->layout.parameters().size());
    for (const auto& group : impl_->groups)
      group->put_lamb_coeffs(progress.lamb_coeffs);
  }
  return progress;
}

optim::EarlyGradients* ZeroOptimizer::early() {
  return impl_->options.stage == 1 ? &impl_->early : nullptr;
}

void EarlyBuckets::reduce(View grads, Range range) {
  require_view("grads", grads, impl_.layout.size(), true, true);
  if (impl_.window.backwards() > 0)
    refuse("reduce: gradients are handed over one by one in this window");
  impl_.require_same_array(grads);
  impl_.window.require_unsent(range);
  impl_.whole = grads;
  impl_.window.send(range);
}

std::vector<Range> EarlyBuckets::buckets() const {
  return impl_.window.buckets();
}

}  // namespace thinwire::zero
