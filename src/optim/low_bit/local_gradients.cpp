// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/local_gradients.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "thinwire/core/error.h"

namespace thinwire::optim {

LocalGradients::LocalGradients(LowBitModel& model)
    : model_(model),
      exact_(model.comm, model.pool, model.adam.layout(),
             model.settings.exchange.bucket_elements),
      number_(optimizer_number(model.comm)) {}

bool LocalGradients::skips(const StepInput& in) const {
  return model_.settings.exchange.skip_nonfinite ||
         in.skip_if_any_rank_nonfinite;
}

// The one scalar exchange of a step: are all gradients finite, how long are
// they? Returns the RMS of the ranks' norms, or nothing if the step is skipped.
std::optional<double> LocalGradients::agree_on_norm(const StepInput& in,
                                                    bool has_late,
                                                    StepMeter& step) {
  StepReport& report = step.report();
  const GradientSummary own{.squares = exact_.local_squares(in.grads),
                            .optimizer = number_,
                            .left_out = memory.left_out_a_step,
                            .late = has_late};
  Agreement agreement;
  try {
    agreement = agree(model_.comm, own, step);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kFailedPrecondition)
      exact_.abandon(step);  // another optimizer's: others may go on
    throw;
  }
  any_late_ = agreement.any_late;
  first_agreements_.report(agreement, report);
  if (agreement.nonfinite_rank >= 0 && skips(in)) {
    report.applied = false;
    report.nonfinite_rank = agreement.nonfinite_rank;
    exact_.abandon(step);
    return std::nullopt;
  }
  report.nonfinite_rank = agreement.left_out_rank;
  memory.left_out_a_step = false;
  return agreement.rms_norm / in.loss_scale;
}

std::optional<float> LocalGradients::average(const StepInput& in,
                                             StepMeter& step) {
  StepReport& report = step.report();
  const auto rms_norm = agree_on_norm(in, false, step);
  if (!rms_norm) return std::nullopt;
  exact_.complete(in.grads, step);
  const double divisor =
      in.loss_scale * sum_divisor(model_.comm, in.grads.dtype());
  report.grad_norm = std::sqrt(sum_of_squares(model_.pool, in.grads)) / divisor;
  if (skips(in) && !std::isfinite(report.grad_norm)) {
    report.applied = false;  // finite everywhere, but their sum overflows
    return std::nullopt;
  }
  memory.norm.measure(report.grad_norm, *rms_norm);
  report.clip_factor =
      clip_factor(report.grad_norm, model_.settings.exchange.max_grad_norm);
  return static_cast<float>(report.clip_factor / divisor);
}

std::optional<double> LocalGradients::clip_by_estimate(const StepInput& in,
                                                       bool has_late,
                                                       StepMeter& step) {
  const auto rms_norm = agree_on_norm(in, has_late, step);
  if (!rms_norm) return std::nullopt;
  return clip(*rms_norm, step.report()) / in.loss_scale;
}

std::optional<double> LocalGradients::clip_locally(const StepInput& in,
                                                   StepMeter& step) {
  StepReport& report = step.report();
  const double own = exact_.local_squares(in.grads);
  const bool is_finite = std::isfinite(own);
  report.grad_norm_is_estimate = true;
  if (skips(in)) {
    if (in.skip_if_any_rank_nonfinite) {
      report.nonfinite_rank = first_rank(!is_finite, step);
      report.applied = report.nonfinite_rank < 0;
      if (!report.applied) return std::nullopt;
    }
    if (!is_finite) {
      memory.left_out_a_step = true;
      return std::nullopt;
    }
  }
  return clip(std::sqrt(own) / in.loss_scale, report) / in.loss_scale;
}

// Nobody has the averaged gradient: its norm is estimated.
double LocalGradients::clip(double rms_norm, StepReport& report) const {
  const ExchangeOptions& options = model_.settings.exchange;
  report.grad_norm =
      options.calibrated_clipping ? memory.norm.estimate(rms_norm) : rms_norm;
  report.grad_norm_is_estimate = true;
  report.clip_factor = clip_factor(report.grad_norm, options.max_grad_norm);
  return report.clip_factor;
}

// The lowest rank that says so; -1: none.
int LocalGradients::first_rank(bool own, StepMeter& step) {
  const std::uint8_t flag = own ? 1 : 0;
  std::vector<std::uint8_t> flags(static_cast<std::size_t>(model_.comm.size()));
  step.waiting([&] { model_.comm.all_gather(std::span(&flag, 1), flags); });
  const auto first = std::find(flags.begin(), flags.end(), 1);
  return first == flags.end() ? -1 : static_cast<int>(first - flags.begin());
}

void LocalGradients::Memory::add_to(State& state) const {
  norm.save(state.common);
  state.own.put_integer("left_out_a_step", left_out_a_step ? 1 : 0);
}

LocalGradients::Memory LocalGradients::Memory::load(const StateDict& state) {
  Memory memory;
  memory.norm.load(state);
  memory.left_out_a_step = state.has_scalar("left_out_a_step") &&
                           state.integer("left_out_a_step") != 0;
  return memory;
}

}  // namespace thinwire::optim
