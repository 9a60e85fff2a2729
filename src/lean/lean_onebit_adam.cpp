// SPDX-License-Identifier: Apache-2.0
// arXiv:2102.02888, Algorithm 1, over codes.
// docs/algorithms/lean-onebit-adam.md shows the same steps. The freeze is in
// freeze.cpp.
#include "thinwire/lean/lean_onebit_adam.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "lean/impl.h"
#include "optim/checks.h"
#include "optim/low_bit/freeze/freeze.h"
#include "optim/verification.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/checksum.h"
#include "zero/checks.h"

namespace thinwire::lean {

using optim::StepInput;
using optim::StepMeter;
using optim::StepReport;

namespace {

optim::LowBitSettings settings_of(const LeanOnebitAdamOptions& options) {
  optim::LowBitSettings settings = optim::low_bit_settings(
      "lean_onebit_adam",
      fmt::format("{} denominator_bits={}", optim::describe(options.freeze),
                  options.denominator_bits),
      options);
  settings.warmup_bits = {};
  settings.residual_dtype =
      options.compression.residual_dtype.value_or(DType::kBFloat16);
  return settings;
}

// Returns blocks whose chunks are the pieces of a bucket, ordered by place, so
// that each rank serves its own elements.
exchange::BlockLayout cells(const ParameterLayout& layout,
                            const zero::ShardLayout& shards) {
  std::vector<std::vector<Range>> pieces;
  for (const zero::ShardBucket& bucket : shards.buckets()) {
    std::vector<Range>& by_place = pieces.emplace_back();
    for (const int rank : shards.owners())
      by_place.push_back(bucket.pieces[static_cast<std::size_t>(rank)]);
  }
  std::vector<Range> units;
  for (const Parameter& p : layout.parameters())
    units.push_back({p.offset, p.size});
  return exchange::BlockLayout::of_pieces(units, pieces);
}

}  // namespace

LeanOnebitAdam::Impl::Impl(comm::Communicator& c, const ParameterLayout& l,
                           View params, const LeanOnebitAdamOptions& o,
                           ConstView initial)
    : comm(c),
      layout(l),
      exchange(optim::with_buckets(settings_of(o), c, l).exchange),
      denominator_bits(o.denominator_bits),
      bits_of_options{o.freeze.warmup_bits, optim::warmup_bits_of(o.freeze)},
      warmup_bits(bits_of_options.planned),
      shards(zero::ShardLayout::of(
          l, c.size(),
          {.bucket_elements = exchange.bucket_elements, .hosts = c.hosts()})),
      model(c, l, settings_of(o), cells(l, shards)),
      groups(layout, model.masks,
             [this] {
               std::vector<optim::ParameterGroups*> all{&model.adam};
               if (exact) all.push_back(&exact->groups());
               return all;
             }),
      gradients(model),
      momentum(model, /*keeps_previous=*/false),
      denominators(model, o.denominator_bits),
      full(params),
      exact(make_exact(initial)),
      freeze(model, o.freeze) {}

std::unique_ptr<zero::ZeroOptimizer> LeanOnebitAdam::Impl::make_exact(
    ConstView initial) const {
  const optim::AdamOptions rule = model.settings.adam;
  return std::make_unique<zero::ZeroOptimizer>(
      comm, layout,
      [rule](const ParameterLayout& shard) {
        return std::make_unique<optim::Adam>(shard, rule);
      },
      full.params(),
      zero::ZeroOptions{
          .stage = 1,
          .dtype = full.params().dtype(),
          .exchange = exchange,
          .wire = {.bits_up = warmup_bits,
                   .bits_down = warmup_bits,
                   .residual_dtype = model.settings.residual_dtype}},
      initial);
}

// ---- the step

void LeanOnebitAdam::Impl::take_step(const StepInput& in, StepMeter& step) {
  if (is_frozen())
    compressed_step(in, step);
  else
    warm_up(in, step);
}

// Performs a step of the warm-up, which is Adam on the averaged gradient. Each
// rank updates its shard.
void LeanOnebitAdam::Impl::warm_up(const StepInput& in, StepMeter& step) {
  step.report().bits = sends_low_bits() ? warmup_bits : 0;
  // a = sqrt(mean_i ||g_i||^2). If it is not finite, all ranks skip the step.
  const auto rms_norm = gradients.agree_on_norm(in, false, step);
  if (!rms_norm && !has_sent_early) return;
  follow_masks();
  // g = clip * mean_i g_i,  m, v and p as in Adam
  StepInput exact_step = in;
  // The freeze splits p and therefore writes it again.
  const std::int64_t planned = freeze.planned();
  if (planned == optim::kAutoFreeze || steps + 1 >= planned)
    exact_step.final_range = {};
  const StepReport report = exact->step(exact_step);
  has_sent_early = false;
  step.report().exchange_seconds += report.exchange_seconds;
  step.report().applied = report.applied;
  step.report().grad_norm = report.grad_norm;
  step.report().clip_factor = report.clip_factor;
  step.report().residuals_cleared = report.residuals_cleared;
  if (!report.applied) return;
  steps = exact->progress().steps;
  gradients.remember(rms_norm.value(), report.grad_norm, report.grad_norm);
  // d = max(sqrt(v / (1 - beta2^T)) + eps, floor); 1/d and p in low-bit form
  if (freeze.is_last(
          steps, [&] { return norm_of_variance(step); }, momentum))
    begin_compression(step);
}

// Performs a step of the compression stage: d does not change, and m_i is sent
// as signs.
void LeanOnebitAdam::Impl::compressed_step(const StepInput& in,
                                           StepMeter& step) {
  // With hierarchical ranks, g_i is the mean of host i, on the rank that
  // encodes it.
  if (model.host) model.host->average(in.grads, step);
  // g_i = clip * g_i, using an estimate of the norm of the mean
  const auto scale = gradients.clip_by_estimate(
      in, momentum.participation.has_late(in.grads), step);
  if (!scale) return;
  const optim::Coefficients c = model.coefficients(++steps, *scale);
  if (gradients.any_late()) {
    const auto admitted = momentum.participation.admit_late(step);
    denominators.admit(admitted);
    step.report().revived = admitted.size();
  }
  denominators.guard(in.grads, *scale, gradients.chunk_squares());
  if (model.masks.are_waiting()) follow_masks();
  // m_i = beta1 m + (1 - beta1) g_i
  // m = server(mean_i worker(m_i)), each with error feedback, in 1 bit
  const auto apply = [&](std::size_t b, const kernels::MomentumForm& m) {
    // p = p - lr (m / (1 - beta1^t) * R + wd p)
    kernels::CodedUpdateArrays arrays = denominators.arrays(b);
    full.point(model.block(b), arrays);
    kernels::sign_update_coded(m, arrays, c[model.layout.block_group[b]]);
  };
  momentum.exchange.average(in, c, apply, step);
  verify();
}

// Before the freeze, only records that the masks have changed.
optim::MaskChange LeanOnebitAdam::Impl::follow_masks() {
  model.masks.follow();
  if (!is_frozen()) return {};
  optim::MaskChange change = momentum.participation.follow_masks();
  denominators.leave_out(change.excluded);
  return change;
}

// During the exact stage, ZeroOptimizer verifies.
void LeanOnebitAdam::Impl::verify() {
  const std::int64_t every = exchange.verify_every;
  if (every == 0 || steps % every != 0) return;
  const ConstView low = full.low_buffer().view();
  optim::verify_same(
      comm, model.pool, layout, full.params(),
      fmt::format("step {} frozen_at {}\nmasks {:08x} lower bits {:016x} "
                  "{}{}{}",
                  steps, freeze.frozen_at(), model.masks.fingerprint(),
                  checksum(low), denominators.checksums(),
                  model.settings.describe(), model.adam.describe()));
}

StepReport LeanOnebitAdam::Impl::step(const StepInput& in) {
  require_step(in);
  StepReport report{.phase = phase(), .loss_scale = in.loss_scale};
  if (model.host) model.host->begin_step();
  {
    StepMeter meter(comm, report);
    set_stage(meter);
    take_step(in, meter);
  }
  if (!report.applied) ++skipped;
  report.masked = momentum.participation.num_left_out();
  report.heavy = denominators.heavy().size();
  return report;
}

void LeanOnebitAdam::Impl::require_step(const StepInput& in) const {
  zero::require_same_memory(in, full.params());
  require_view("grads", in.grads, layout.size(), true, true);
  require(warmup_bits == 0 || will_be_frozen() || in.loss_scale == 1,
          "loss_scale", "1 in a warm-up over few bits", in.loss_scale);
}

// ---- before the step

void LeanOnebitAdam::Impl::reduce(View grads, Range range) {
  require_reduces();
  require_view("grads", grads, layout.size(), true, true);
  set_stage();
  if (is_frozen()) {
    model.host->begin_early(grads, range);
    return;
  }
  // Measures before the average overwrites this rank's gradients.
  gradients.measure_early(grads, range);
  exact->early()->reduce(grads, range);
  has_sent_early = true;
}

std::vector<Range> LeanOnebitAdam::Impl::buckets() const {
  std::vector<Range> ranges;
  for (const zero::ShardBucket& bucket : shards.buckets())
    ranges.push_back(bucket.range);
  return ranges;
}

void LeanOnebitAdam::Impl::measure(ConstView grads, Range range) {
  require_measures();
  gradients.measure_early(grads, range);
}

// ---- the class

void LeanOnebitAdamOptions::validate(const ParameterLayout& layout) const {
  settings_of(*this).validate(layout);
  compression.validate();
  freeze.validate();
  require(denominator_bits == 8 || denominator_bits == 4, "denominator_bits",
          "8 or 4", denominator_bits);
}

LeanOnebitAdam::LeanOnebitAdam(comm::Communicator& comm,
                               const ParameterLayout& layout, View params,
                               const LeanOnebitAdamOptions& options,
                               ConstView initial) {
  options.validate(layout);
  require(
      params.dtype() == DType::kFloat32 || params.dtype() == DType::kBFloat16,
      "params", "float32 or bfloat16", to_string(params.dtype()));
  require(params.size() == layout.size(), "params",
          fmt::format("{} elements", layout.size()), params.size());
  comm::require_same(comm, "parameter layout and options",
                     layout.describe() + settings_of(options).describe());
  impl_ = std::make_unique<Impl>(comm, layout, params, options, initial);
}

LeanOnebitAdam::~LeanOnebitAdam() = default;

StepReport LeanOnebitAdam::step(const StepInput& input) {
  return impl_->step(input);
}

optim::ParameterGroups& LeanOnebitAdam::groups() { return impl_->groups; }

optim::Progress LeanOnebitAdam::progress() const {
  return {.steps = impl_->steps,
          .skipped = impl_->skipped,
          .phase = impl_->phase(),
          .freeze_step = impl_->freeze.planned()};
}

optim::EarlyGradients* LeanOnebitAdam::early() { return impl_.get(); }

optim::FreezeStage* LeanOnebitAdam::freeze() { return &impl_->freeze; }

std::vector<float> LeanOnebitAdam::full_parameter(std::string_view name) {
  if (impl_->exact) return impl_->exact->whole_values().parameter(name);
  const Parameter& p = impl_->layout.parameter(name);
  std::vector<float> values(p.size);
  impl_->full.read({p.offset, p.size}, values);
  return values;
}

void LeanOnebitAdam::set_full_parameter(std::string_view name,
                                        std::span<const float> values) {
  if (impl_->exact)
    return impl_->exact->whole_values().set_parameter(name, values);
  const Parameter& p =
      impl_->layout.parameters()[zero::index_for(impl_->layout, name, values)];
  impl_->full.write({p.offset, p.size}, values);
}

double LeanOnebitAdam::residual_ratio() const {
  return impl_->momentum.exchange.residual_ratio();
}

}  // namespace thinwire::lean
