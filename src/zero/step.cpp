// SPDX-License-Identifier: Apache-2.0
// Step in which each rank measures, clips and applies the reduced gradients of
// its shard.
#include <fmt/format.h>

#include <cmath>

#include "optim/gradient_agreement.h"
#include "optim/step_pieces.h"
#include "optim/verification.h"
#include "zero/impl.h"

namespace thinwire::zero {

using optim::StepInput;
using optim::StepReport;

StepReport ZeroOptimizer::step(const StepInput& input) {
  require_step(input, impl_->window, impl_->params);
  impl_->require_same_array(input.grads);
  require(impl_->options.wire.bits_up == 0 || input.loss_scale == 1,
          "loss_scale", "1 with wire.bits_up", input.loss_scale);
  return impl_->step(input);
}

StepReport ZeroOptimizer::step() {
  return step({.params = impl_->params, .grads = {}});
}

StepReport ZeroOptimizer::Impl::step(const StepInput& in) {
  if (options.stage == 2 && !in.grads.empty()) {
    arriving = in.grads.dtype();
    window.collect_all(in.grads);
  }
  StepReport report;
  {
    optim::StepMeter meter(comm, report);
    take_step(in, meter, report);
  }
  if (!report.applied) {
    ++counts.skipped;
    // The sum does not reveal which rank's gradient was not finite.
    if (scale.is_last_chance()) {
      const std::int64_t first = first_nonfinite();
      window.restart();
      scale.stop(comm, layout,
                 {.first = first,
                  .is_averaged = true,
                  .last_good_step = counts.steps});
    }
  }
  scale.update(!report.applied);
  window.restart();
  return report;
}

void ZeroOptimizer::Impl::take_step(const StepInput& in,
                                    optim::StepMeter& meter,
                                    StepReport& report) {
  meter.waiting([&] { finish(in.grads); });
  const double factor = scale.value() * in.loss_scale;
  report.loss_scale = factor;
  report.grad_norm = optim::whole_norm(in, norm(factor, in.uncounted, meter));
  const bool skips = options.exchange.skip_nonfinite || scale.is_used() ||
                     in.skip_if_any_rank_nonfinite;
  report.applied = std::isfinite(report.grad_norm) || !skips;
  for (const auto& group : groups)
    if (group->settle(report.applied)) report.residuals_cleared = true;
  if (!report.applied) return;
  report.clip_factor =
      optim::clip_factor(report.grad_norm, options.exchange.max_grad_norm);
  ++counts.steps;
  for (const auto& group : groups)
    group->update(
        {counts.steps, static_cast<float>(report.clip_factor /
                                          group->gradients().divisor(factor))},
        pool, meter, in.final_range);
  const std::int64_t every = options.exchange.verify_every;
  if (every != 0 && counts.steps % every == 0 && options.experts.empty())
    optim::verify_same(
        comm, pool, layout, params,
        fmt::format("step {}\n{}{}", counts.steps,
                    groups.front()->rule().describe(), options.describe()));
}

// Adds each group's squares in flat order, regardless of which rank owns them.
// Experts differ from rank to rank, so their squares are added rank by rank.
double ZeroOptimizer::Impl::norm(double loss_scale,
                                 std::span<const Range> uncounted,
                                 optim::StepMeter& meter) {
  std::vector<std::vector<double>> own;
  std::vector<double> sent;
  for (const auto& group : groups) {
    own.push_back(group->squares(uncounted, pool));
    // Gradients of experts are sums over a different number of ranks.
    if (own.size() > 1)
      for (double& square : own.back())
        square /= std::pow(group->gradients().divisor(loss_scale), 2);
    sent.insert(sent.end(), own.back().begin(), own.back().end());
  }
  std::size_t total = 0;
  for (const std::size_t count : num_squares) total += count;
  std::vector<double> all(total);
  meter.waiting([&] { comm.all_gather(sent, all, num_squares); });

  const ShardGroup& dense = *groups.front();
  std::vector<std::span<const double>> of_dense;
  std::vector<std::span<const double>> of_wide;
  std::vector<double> of_experts;
  std::size_t at = 0;
  for (int r = 0; r < comm.size(); ++r) {
    const std::size_t count = num_squares[static_cast<std::size_t>(r)];
    const auto squares = std::span<const double>(all).subspan(at, count);
    const std::size_t in_dense = num_cells(dense.shards(), r);
    of_dense.push_back(squares.first(in_dense));
    const auto rest = squares.subspan(in_dense);
    of_wide.push_back(rest);
    of_experts.insert(of_experts.end(), rest.begin(), rest.end());
    at += count;
  }
  const double divisor = groups.front()->gradients().divisor(loss_scale);
  const double of_all =
      std::sqrt(sum_in_order(dense.shards(), of_dense)) / divisor;
  if (groups.size() == 1) return of_all;
  if (params.is_joined())
    return std::hypot(of_all,
                      std::sqrt(sum_in_order(groups[1]->shards(), of_wide)));
  double experts = 0;
  for (const double square : of_experts) experts += square;
  return std::hypot(of_all, std::sqrt(experts));
}

// Returns the first parameter with a non-finite gradient in this rank's shards,
// or -1.
std::int64_t ZeroOptimizer::Impl::first_nonfinite() {
  std::int64_t first = -1;
  for (const auto& group : groups) {
    const std::int64_t own = group->first_nonfinite();
    if (own >= 0 && (first < 0 || own < first)) first = own;
  }
  return first;
}

}  // namespace thinwire::zero
