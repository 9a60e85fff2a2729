// SPDX-License-Identifier: Apache-2.0
#include "shard/corrected_zero.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "optim/gradient_clipping.h"
#include "optim/verification.h"
#include "shard/minimum_scale.h"
#include "thinwire/core/error.h"
#include "thinwire/core/memory.h"

namespace thinwire::shard {

using optim::StepInput;
using optim::StepReport;

namespace {

// Groups that are in none of the expert groups.
std::vector<std::size_t> dense_groups(const ParameterLayout& layout,
                                      const ZeroOptions& options) {
  std::vector<std::size_t> groups;
  for (std::size_t g = 0; g < layout.num_groups(); ++g)
    if (std::none_of(options.experts.begin(), options.experts.end(),
                     [&](const ExpertGroup& e) { return e.group == g; }))
      groups.push_back(g);
  return groups;
}

std::string prefix_of(std::size_t section) {
  return section == 0 ? "" : fmt::format("experts.{}.", section);
}

}  // namespace

CorrectedZero::CorrectedZero(comm::Communicator& c, const ParameterLayout& l,
                             const MakeRule& make_rule, View p,
                             const ZeroOptions& settings, ConstView initial)
    : Impl(c, l, p, settings), schedule_(layout, {}) {
  const MemoryScope scope(MemoryKind::kStates);
  if (options.offload)
    copies_ = options.copy_engine ? options.copy_engine
                                  : std::shared_ptr(make_host_copy_engine());
  const auto add = [&](comm::Communicator& of,
                       std::vector<std::size_t> groups) {
    sections_.push_back(
        std::make_unique<Section>(SectionParts{.comm = of,
                                               .layout = layout,
                                               .make_rule = make_rule,
                                               .params = params,
                                               .initial = initial,
                                               .options = options,
                                               .copies = copies_.get(),
                                               .groups = std::move(groups),
                                               .batch_ranks = comm.size()}));
  };
  // Without experts all groups, also where there is none.
  add(comm, options.experts.empty() ? std::vector<std::size_t>{}
                                    : dense_groups(layout, options));
  for (const ExpertGroup& experts : options.experts)
    add(*experts.comm, {experts.group});
  schedule_ = BucketSchedule(layout, buckets());

  std::size_t own = 0;
  for (const auto& section : sections_)
    own += section->num_squares(section->comm().rank());
  const auto own_integer = static_cast<std::int64_t>(own);
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::span(&own_integer, 1), all);
  num_squares_.assign(all.begin(), all.end());
}

// ---- steps

void CorrectedZero::finish(View grads) {
  if (is_finished_) return;
  if (grads.empty() && options.stage == 1) grads = sums_.view();
  try {
    for (const auto& section : sections_)
      section->gradients().finish(options.stage == 1 ? grads : View{});
  } catch (...) {
    // The caller's memory may go: other groups' ranks still write there.
    for (const auto& section : sections_) section->gradients().abandon();
    throw;
  }
  is_finished_ = true;
}

// Each section's sum in its flat order, whoever has which part of it; experts,
// of which ranks have different ones, rank by rank.
double CorrectedZero::norm(double loss_scale, optim::StepMeter& meter) {
  std::vector<std::vector<double>> own;
  std::vector<double> sent;
  for (const auto& section : sections_) {
    own.push_back(section->squares(pool));
    // Experts' are those of sums over fewer ranks or more.
    if (own.size() > 1)
      for (double& square : own.back())
        square /= std::pow(section->gradients().divisor(), 2);
    sent.insert(sent.end(), own.back().begin(), own.back().end());
  }
  std::size_t total = 0;
  for (const std::size_t count : num_squares_) total += count;
  std::vector<double> all(total);
  meter.waiting([&] { comm.all_gather(sent, all, num_squares_); });

  const Section& dense = *sections_.front();
  std::vector<std::span<const double>> of_dense;
  std::vector<double> of_experts;
  std::size_t at = 0;
  for (int r = 0; r < comm.size(); ++r) {
    const std::size_t count = num_squares_[static_cast<std::size_t>(r)];
    const auto squares = std::span<const double>(all).subspan(at, count);
    const std::size_t in_dense = dense.num_squares(r);
    of_dense.push_back(squares.first(in_dense));
    const auto rest = squares.subspan(in_dense);
    of_experts.insert(of_experts.end(), rest.begin(), rest.end());
    at += count;
  }
  const double divisor = loss_scale * sections_.front()->gradients().divisor();
  const double of_all = std::sqrt(dense.sum_in_order(of_dense)) / divisor;
  if (sections_.size() == 1) return of_all;
  double experts = 0;
  for (const double square : of_experts) experts += square;
  return std::hypot(of_all, std::sqrt(experts) / loss_scale);
}

void CorrectedZero::take_step(const StepInput& in, optim::StepMeter& meter,
                              StepReport& report) {
  meter.waiting([&] { finish(in.grads); });
  const double scale = loss_scale() * in.loss_scale;
  report.loss_scale = scale;
  report.grad_norm = norm(scale, meter);
  const bool skips =
      options.exchange.skip_nonfinite || scales() || in.skips_together;
  report.applied = std::isfinite(report.grad_norm) || !skips;
  if (!report.applied) return;
  report.clip_factor =
      optim::clip_factor(report.grad_norm, options.exchange.max_grad_norm);
  ++steps;
  for (const auto& section : sections_)
    section->update(
        steps, report.clip_factor / (scale * section->gradients().divisor()),
        pool, meter);
  const std::int64_t every = options.exchange.verify_every;
  if (every != 0 && steps % every == 0 && options.experts.empty())
    optim::verify_same(
        comm, pool, layout, params,
        fmt::format("step {}\n{}{}", steps,
                    sections_.front()->rule().describe(), options.describe()));
}

StepReport CorrectedZero::step(const StepInput& in) {
  // They are in memory that this object may not keep.
  if (options.stage == 2 && !in.grads.empty()) {
    for (const auto& section : sections_)
      section->gradients().begin({}, in.grads.dtype());
    for (std::size_t i = layout.parameters().size(); i-- > 0;) {
      const Parameter& p = layout.parameters()[i];
      collect(i, in.grads.subview(p.offset, p.size));
    }
    end_backward();
  }
  StepReport report;
  {
    optim::StepMeter meter(comm, report);
    take_step(in, meter, report);
  }
  if (!report.applied) ++skipped;
  if (scales()) {
    if (!report.applied && is_last_chance(*this)) stop();
    scaler.update(!report.applied);
  }
  end_window();
  return report;
}

// Whose gradient it was is lost in the sum.
void CorrectedZero::stop() {
  std::int64_t own = -1;
  for (const auto& section : sections_) {
    const std::int64_t first = section->first_nonfinite();
    if (first >= 0 && (own < 0 || first < own)) own = first;
  }
  end_window();
  stop_at_minimum_scale(*this, own);
}

void CorrectedZero::end_window() {
  for (const auto& section : sections_) section->gradients().begin_window();
  late_ = {};
  is_finished_ = false;
}

// ---- whole values and states

std::vector<float> CorrectedZero::read(std::size_t parameter,
                                       std::string_view what, View grads) {
  Section& section = section_of(parameter);
  if (what != "grad") return section.read(parameter, what);
  finish(grads);
  std::vector<float> values = section.read(parameter, what);
  const double divisor = loss_scale() * section.gradients().divisor();
  for (float& value : values) value = static_cast<float>(value / divisor);
  return values;
}

void CorrectedZero::write(std::size_t parameter, std::string_view what,
                          std::span<const float> values) {
  Section& section = section_of(parameter);
  if (what != "grad") return section.write(parameter, what, values);
  finish({});
  const double divisor = loss_scale() * section.gradients().divisor();
  std::vector<float> sums;
  for (const float value : values)
    sums.push_back(static_cast<float>(value * divisor));
  section.write(parameter, what, sums);
}

void CorrectedZero::save(StateDict& state) const {
  for (std::size_t s = 0; s < sections_.size(); ++s)
    sections_[s]->save(state, prefix_of(s));
}

void CorrectedZero::require_fits(const StateDict& state) const {
  for (std::size_t s = 0; s < sections_.size(); ++s)
    sections_[s]->require_fits(state, prefix_of(s));
}

void CorrectedZero::load(const StateDict& state) {
  for (std::size_t s = 0; s < sections_.size(); ++s)
    sections_[s]->load(state, prefix_of(s));
  for (const auto& section : sections_) section->gather_from_masters();
}

std::unique_ptr<ZeroOptimizer::Impl> make_corrected_zero(
    comm::Communicator& comm, const ParameterLayout& layout,
    const MakeRule& make_rule, View params, const ZeroOptions& options,
    ConstView initial) {
  return std::make_unique<CorrectedZero>(comm, layout, make_rule, params,
                                         options, initial);
}

}  // namespace thinwire::shard
