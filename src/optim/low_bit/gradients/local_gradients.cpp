// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/gradients/local_gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "exchange/exact_average.h"
#include "kernels/pooled_norm.h"
#include "optim/checks.h"
#include "optim/saved_state.h"
#include "thinwire/core/error.h"

namespace thinwire::optim {

namespace {

constexpr const char* kLastLossScale = "last_loss_scale";

std::optional<double> saved_loss_scale(const StateDict& state) {
  if (!state.has_scalar(kLastLossScale)) return std::nullopt;
  const double saved = state.real(kLastLossScale);
  if (!(std::isfinite(saved) && saved > 0))
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("the state's {} must be finite and > 0, got {}",
                            kLastLossScale, saved));
  return saved;
}

}  // namespace

void ExactGroups::begin(View grads) {
  if (model_.observer != nullptr)
    for (const Range& r : model_.layout.exact)
      model_.observer->exact(r, grads.subview(r.offset, r.size));
  queued_ = exchange::queue_sums(model_.comm, grads, model_.layout.exact,
                                 model_.settings.exchange.bucket_elements);
}

void ExactGroups::finish(std::int64_t number, const StepInput& in,
                         double grad_scale, StepMeter& step) {
  step.wait_for(queued_);
  queued_.clear();
  const double divisor = exchange::sum_divisor(model_.comm, in.grads.dtype());
  const UpdateArrays arrays =
      update_arrays(in, static_cast<float>(grad_scale / divisor));
  for (const Range& r : model_.layout.exact) {
    model_.adam.apply_part(number, r, part_of(arrays, r), model_.pool);
    if (in.final_range) in.final_range(r);
  }
}

LocalGradients::LocalGradients(LowBitModel& model)
    : model_(model),
      exact_(model.comm, model.pool, model.size(),
             model.settings.exchange.bucket_elements),
      few_bits_(model),
      number_(optimizer_number(model.comm)) {}

bool LocalGradients::skips(const StepInput& in) const {
  return model_.settings.exchange.skip_nonfinite ||
         in.skip_if_any_rank_nonfinite;
}

// Exchanges the norms of gradients, and whether all gradients are finite.
std::optional<double> LocalGradients::agree_on_norm(const StepInput& in,
                                                    bool has_late,
                                                    StepMeter& step,
                                                    bool is_unlike_early) {
  StepReport& report = step.report();
  memory.loss_scale = in.loss_scale;
  const GradientSummary own{.squares = model_.has_pieces_only()
                                           ? model_.host->sum_of_squares()
                                           : exact_.local_squares(in.grads),
                            .optimizer = number_,
                            .left_out = memory.left_out_a_step,
                            .late = has_late,
                            .unlike_early = is_unlike_early,
                            .masks = model_.masks.fingerprint() & Masks::kBits};
  Agreement agreement;
  try {
    agreement = agree(model_.comm, own, step);
    if (model_.has_pieces_only()) agreement = among_hosts(agreement);
  } catch (const Error& error) {
    // If the error is about another optimizer or other masks, training may
    // continue.
    if (error.code() != ErrorCode::kCommFailure) give_up(step);
    throw;
  }
  any_late_ = agreement.any_late;
  any_unlike_early_ = agreement.any_unlike_early;
  first_agreements_.report(agreement, report);
  if (agreement.nonfinite_rank >= 0 && skips(in)) {
    report.applied = false;
    report.nonfinite_rank = agreement.nonfinite_rank;
    tell_of_nonfinite(in);
    give_up(step);
    few_bits_.clear(report);
    return std::nullopt;
  }
  report.nonfinite_rank = agreement.left_out_rank;
  memory.left_out_a_step = false;
  return agreement.rms_norm / in.loss_scale;
}

void LocalGradients::give_up(StepMeter& step) {
  exact_.abandon(step);
  few_bits_.abandon();
}

// Corrects the agreement for pieces of the hosts' means. Each host counts once,
// and the rank with a non-finite gradient is no longer known.
Agreement LocalGradients::among_hosts(Agreement agreement) const {
  agreement.rms_norm = std::sqrt(agreement.squares / model_.workers());
  agreement.equal_norms = false;
  if (agreement.nonfinite_rank < 0) return agreement;
  const std::vector<int>& ranks = model_.comm.hosts().ranks;
  const auto place = std::ranges::find(ranks, agreement.nonfinite_rank);
  const auto on_host =
      (place - ranks.begin()) % model_.comm.hosts().ranks_per_host;
  agreement.nonfinite_rank = *(place - on_host);
  return agreement;
}

// Estimates the RMS norm of the hosts' means from the norms of the ranks'
// gradients and of the mean of all. The ranks' noise is assumed to be
// independent. The square of a mean of G then lies between the two squares as 1
// / G lies between 1 and 1 / W.
double LocalGradients::rms_of_workers(double rms_norm, double mean_norm) const {
  if (!model_.host) return rms_norm;
  const double noise =
      std::max(0.0, rms_norm * rms_norm - mean_norm * mean_norm);
  const double part = (model_.workers() - 1.0) / (model_.comm.size() - 1.0);
  return std::sqrt(mean_norm * mean_norm + noise * part);
}

void LocalGradients::remember(double rms_norm, double mean_norm,
                              double counted_norm) {
  const double rms =
      model_.has_pieces_only() ? rms_norm : rms_of_workers(rms_norm, mean_norm);
  memory.norm.measure(counted_norm, rms);
  memory.lagged.begin(rms);
}

void LocalGradients::begin_early(View grads, Range range) {
  if (!few_bits_.is_on()) return exact_.begin_early(grads, range);
  require_view("grads", grads, model_.size(), true, true);
  exact_.measure_early(grads, range);
  // without a known loss scale, because a wrong guess would cost the residuals
  if (memory.loss_scale)
    few_bits_.begin_early(grads, range, *memory.loss_scale);
}

std::optional<UpdateArrays> LocalGradients::average(const StepInput& in,
                                                    StepMeter& step) {
  StepReport& report = step.report();
  const bool in_few_bits = few_bits_.is_on();
  if (in_few_bits && model_.host) model_.host->average(in.grads, step);
  const auto rms_norm = agree_on_norm(in, false, step, few_bits_.was_wrong(in));
  if (!rms_norm) return std::nullopt;
  UpdateArrays arrays = update_arrays(in, 1);
  double divisor = 1;
  if (in_few_bits) {
    arrays.grads = few_bits_.average(in, any_unlike_early_, step);
  } else {
    exact_.complete(in.grads, step);
    divisor =
        in.loss_scale * exchange::sum_divisor(model_.comm, in.grads.dtype());
  }
  const double squares = kernels::sum_of_squares(model_.pool, arrays.grads);
  const double own =
      std::sqrt(counted(squares, arrays.grads, in.uncounted, model_.pool)) /
      divisor;
  report.grad_norm = whole_norm(in, own);
  if (skips(in) && !std::isfinite(report.grad_norm)) {
    report.applied = false;  // all gradients are finite, but not their sum
    few_bits_.clear(report);
    return std::nullopt;
  }
  remember(*rms_norm, std::sqrt(squares) / divisor, own);
  report.clip_factor =
      clip_factor(report.grad_norm, model_.settings.exchange.max_grad_norm);
  few_bits_.clipped_by(report.clip_factor);
  arrays.grad_scale = static_cast<float>(report.clip_factor / divisor);
  return arrays;
}

std::optional<double> LocalGradients::clip_by_estimate(const StepInput& in,
                                                       bool has_late,
                                                       StepMeter& step) {
  const auto rms_norm = agree_on_norm(in, has_late, step);
  if (!rms_norm) return std::nullopt;
  const auto whole = norm_of_whole(in, *rms_norm);
  if (whole && skips(in) && !std::isfinite(*whole)) {
    step.report().applied = false;
    exact_.abandon(step);
    return std::nullopt;
  }
  const double by = model_.settings.exchange.lagged_clipping
                        ? memory.lagged.take(*rms_norm)
                        : *rms_norm;
  return clip(*rms_norm, by, whole, step.report()) / in.loss_scale;
}

std::optional<double> LocalGradients::clip_locally(const StepInput& in,
                                                   StepMeter& step) {
  StepReport& report = step.report();
  memory.loss_scale = in.loss_scale;
  const double own = exact_.local_squares(in.grads);
  const double norm = std::sqrt(own) / in.loss_scale;
  const auto whole = norm_of_whole(in, norm);
  const bool is_finite = std::isfinite(whole.value_or(own));
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
  return clip(norm, norm, whole, report) / in.loss_scale;
}

// Estimates the norm of the averaged gradient, which no rank computes.
double LocalGradients::estimate(double rms_norm) const {
  return memory.norm.estimate(rms_norm);
}

std::optional<double> LocalGradients::norm_of_whole(const StepInput& in,
                                                    double rms_norm) const {
  if (!in.whole_norm) return std::nullopt;
  return in.whole_norm(estimate(rms_norm));
}

double LocalGradients::clip(double rms_norm, double by,
                            const std::optional<double>& whole,
                            StepReport& report) const {
  report.grad_norm = whole.value_or(estimate(rms_norm));
  report.grad_norm_is_estimate = true;
  report.clip_factor = clip_factor(whole.value_or(estimate(by)),
                                   model_.settings.exchange.max_grad_norm);
  return report.clip_factor;
}

// Returns the lowest rank whose `own` is true, or -1.
int LocalGradients::first_rank(bool own, StepMeter& step) {
  const std::uint8_t flag = own ? 1 : 0;
  std::vector<std::uint8_t> flags(static_cast<std::size_t>(model_.comm.size()));
  step.waiting([&] { model_.comm.all_gather(std::span(&flag, 1), flags); });
  const auto first = std::find(flags.begin(), flags.end(), 1);
  return first == flags.end() ? -1 : static_cast<int>(first - flags.begin());
}

void LocalGradients::Memory::add_to(State& state, bool lags) const {
  norm.save(state.common);
  if (lags) lagged.save(state.common);
  state.own.put_integer("left_out_a_step", left_out_a_step ? 1 : 0);
  if (loss_scale) state.common.put_real(kLastLossScale, *loss_scale);
}

void LocalGradients::list(StateParts& parts) {
  const bool lags = model_.settings.exchange.lagged_clipping;
  parts.add([&](State& state) { memory.add_to(state, lags); },
            [this](const StateDict& state) { return saved_memory(state); },
            [this](const Memory& saved) { memory = saved; });
}

LocalGradients::Memory LocalGradients::saved_memory(
    const StateDict& state) const {
  Memory saved;
  saved.norm.load(state);
  saved.lagged.load(state);
  saved.left_out_a_step = state.integer("left_out_a_step") != 0;
  saved.loss_scale = saved_loss_scale(state);
  if (!state.has_scalar(kSavedWorld)) return saved;
  const CalibratedNorm before = saved.norm;
  saved.norm.rescale(
      saved_count(state, kSavedWorld) / saved_ranks_per_host(state),
      model_.workers());
  saved.lagged.rescale(before, saved.norm);
  return saved;
}

}  // namespace thinwire::optim
